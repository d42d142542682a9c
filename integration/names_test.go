package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"pgapply/internal/pgtest"
)

// pieces are what names are made of that somebody could hope to be run, or to break a quote.
var pieces = []string{
	`"`, `""`, `'`, `''`, `\`, `\'`, `\"`, `;`, `";DROP TABLE victim;--`, `';DROP TABLE victim;--`, `$$`, `$1`, `$a$`, `--`, `/*`, `*/`, `%s`, `%`, `{}`, `,`, `.`, ` `, "\n", "\r\n", "\t",
	"\x1b[31m", "ü", "日本", "\u202e", "🐘", "a", "B", "select", "NULL", "<b>", `&amp;`, "`", `|`, `=`, `(`, `)`, `[`, `]`, `:`, `::int`, `@`, `#`, `?`, "\u0001", `E'`, `U&"`, `x'`,
}

// hostileName makes a name of at most 63 bytes. No two are the same.
func hostileName(random *rand.Rand, number int) string {
	name := fmt.Sprint(number)
	for range 1 + random.IntN(12) {
		piece := pieces[random.IntN(len(pieces))]
		if len(name)+len(piece) > 63 {
			break
		}
		if random.IntN(2) == 0 {
			name += piece
		} else {
			name = piece + name
		}
	}
	if random.IntN(4) == 0 { // as long as a name can be
		name += strings.Repeat("x", 63-len(name))
	}
	return name
}

func quoteName(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }
func quoteLiteral(text string) string {
	return ` E'` + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(text) + `'`
}

// TestHostileNames: whatever the publisher's objects are called, nothing but them is touched,
// from the schema over the copy, the stream, comparison and sequences to the way back.
// PGAPPLY_TEST_NAMES says how often, PGAPPLY_TEST_SEED makes it the same again.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	seed := uint64(fromEnvironment(t, "PGAPPLY_TEST_SEED", int(time.Now().UnixNano()&0xffffff)))
	t.Logf("PGAPPLY_TEST_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	publisher := readable(t)
	_, target := pgtest.Shared(t)
	for range fromEnvironment(t, "PGAPPLY_TEST_NAMES", 1) {
		replicateHostileNames(t, random, linkOf(t, publisher, target), publisher.Major())
	}
}

func replicateHostileNames(t *testing.T, random *rand.Rand, l *link, major int) {
	made := 0
	name := func() string {
		made++
		return hostileName(random, made)
	}
	schema, table, kind, label, publication, sequence, origin, gid := name(), name(), name(), name(), name(), name(), name(), name()
	key, text, choice, plain, function := name(), name(), name(), name(), name()
	qualified := quoteName(schema) + "." + quoteName(table)
	qualifiedSequence := quoteName(schema) + "." + quoteName(sequence)
	values := func(id int) string {
		return fmt.Sprintf(`(%d, %s, %s, %s)`, id, quoteLiteral(name()), quoteLiteral(label), quoteLiteral(name()))
	}
	definition := []string{
		`CREATE SCHEMA ` + quoteName(schema),
		`CREATE TYPE ` + quoteName(schema) + `.` + quoteName(kind) + ` AS ENUM (` + quoteLiteral(label) + `)`,
		`CREATE FUNCTION ` + quoteName(schema) + `.` + quoteName(function) + `() RETURNS text IMMUTABLE LANGUAGE sql AS ` + quoteLiteral(`SELECT `+quoteLiteral(name())),
		`CREATE SEQUENCE ` + qualifiedSequence,
		`CREATE TABLE ` + qualified + ` (` + quoteName(key) + ` int PRIMARY KEY, ` + quoteName(text) + ` text DEFAULT ` + quoteName(schema) + `.` + quoteName(function) + `(), ` +
			quoteName(choice) + ` ` + quoteName(schema) + `.` + quoteName(kind) + `, ` + quoteName(plain) + ` text DEFAULT ` + quoteLiteral(name()) + `)`,
	}
	l.both(`CREATE TABLE victim (a int)`, `INSERT INTO victim VALUES (1)`)
	l.onSource(definition...)
	filter := ""
	if major >= 15 {
		filter = ` WHERE (` + quoteName(key) + ` > 0 AND ` + quoteLiteral(name()) + ` <> '')`
	}
	l.onSource(`CREATE PUBLICATION p`,
		`CREATE PUBLICATION `+quoteName(publication)+` FOR TABLE `+qualified+filter,
		`INSERT INTO `+qualified+` VALUES `+values(1)+`, `+values(2)+`, `+values(3),
		`SELECT setval(`+quoteLiteral(qualifiedSequence)+`, 41)`)
	ends := []string{"--name", l.name, "--source", l.source, "--target", l.target}
	flags := []string{"--publication", publication, "--copy-data", "--copy-schema"}
	if major >= 15 {
		flags = append(flags, "--two-phase")
	}
	p := l.spawn(flags...)
	l.streams(p)
	pgtest.WaitFor(t, l.target, `SELECT string_agg(state, '') FROM pgapply.subscription_table WHERE subscription = $1`, "r", l.name)

	l.onSource(
		`INSERT INTO `+qualified+` (`+quoteName(key)+`, `+quoteName(text)+`) VALUES (4, `+quoteLiteral(name())+`)`,
		`UPDATE `+qualified+` SET `+quoteName(plain)+` = `+quoteLiteral(name())+` WHERE `+quoteName(key)+` = 1`,
		`UPDATE `+qualified+` SET `+quoteName(key)+` = 20 WHERE `+quoteName(key)+` = 2`,
		`DELETE FROM `+qualified+` WHERE `+quoteName(key)+` = 3`,
		`SELECT pg_replication_origin_create(`+quoteLiteral(l.name+origin)+`); SELECT pg_replication_origin_session_setup(`+quoteLiteral(l.name+origin)+`);
			INSERT INTO `+qualified+` VALUES `+values(5)+`; SELECT pg_replication_origin_session_reset()`,
		`SELECT pg_replication_origin_drop(`+quoteLiteral(l.name+origin)+`)`,
		`BEGIN; INSERT INTO `+qualified+` VALUES `+values(6)+`; PREPARE TRANSACTION `+quoteLiteral(l.name+gid),
		`COMMIT PREPARED `+quoteLiteral(l.name+gid))
	l.catchUp()
	rows := `SELECT * FROM ` + qualified + ` ORDER BY 1`
	l.same(rows)

	// A difference, a conflict, and all that reports them.
	l.onTarget(`DELETE FROM ` + qualified + ` WHERE ` + quoteName(key) + ` = 4`)
	stdout, stderr, code := shell(t, append([]string{"verify", "--json", "--repair"}, ends...)...)
	require.Equal(t, 8, code, "%s%s", stdout, stderr)
	require.True(t, json.Valid([]byte(stdout)), stdout)
	l.onSource(`UPDATE ` + qualified + ` SET ` + quoteName(plain) + ` = 'missed' WHERE ` + quoteName(key) + ` = 4`)
	l.catchUp()
	stdout, stderr, code = shell(t, append([]string{"conflicts", "list", "--json"}, ends...)...)
	require.Zero(t, code, stderr)
	require.True(t, json.Valid([]byte(stdout)), stdout)
	recorded := pgtest.Query(t, l.target, `SELECT id FROM pgapply.conflict WHERE subscription = $1 AND schemaname = $2 AND relname = $3`, l.name, schema, table)
	require.NotEmpty(t, recorded, "the conflict names the table as it is called")
	stdout, stderr, code = shell(t, append([]string{"conflicts", "show", recorded}, ends...)...)
	require.Zero(t, code, stderr)
	plainText(t, stdout)
	_, stderr, code = shell(t, append([]string{"verify", "--repair=apply", "--yes"}, ends...)...)
	require.Contains(t, []int{0, 8}, code, stderr)
	l.same(rows)

	l.onTarget(`CREATE SEQUENCE ` + qualifiedSequence) // it belongs to no table
	stdout, stderr, code = shell(t, append([]string{"sequences", "--all"}, ends...)...)
	require.Zero(t, code, stderr)
	plainText(t, stdout)
	require.Equal(t, "41", pgtest.Query(t, l.target, `SELECT last_value FROM `+qualifiedSequence))
	for _, command := range [][]string{{"status", "--tables"}, {"verify"}, {"cutover", "--dry-run"}, {"check", "--publication", publication}} {
		stdout, stderr, code = shell(t, append(command, ends...)...)
		require.Contains(t, []int{0, 3}, code, "%s: %s%s", command, stdout, stderr)
		plainText(t, stdout)
		plainText(t, stderr)
	}
	// It may look like a flag.
	resync := append([]string{"resync", "--yes"}, ends...)
	_, stderr, code = shell(t, append(resync, "--", schema+"."+table)...)
	if code == 0 { // a name may hold a dot of its own
		pgtest.WaitFor(t, l.target, `SELECT count(*) FROM pgapply.subscription_table WHERE subscription = $1 AND state <> 'r'`, "0", l.name)
		l.same(rows)
	} else {
		require.Equal(t, 3, code, stderr)
	}
	l.same(`SELECT * FROM victim`)
	plainText(t, p.stderr.String())
	p.stop()
	// The servers have room for a few dozen.
	stdout, stderr, code = shell(t, append([]string{"cleanup", "--yes"}, ends...)...)
	require.Zero(t, code, stderr)
	plainText(t, stdout)
	require.Equal(t, "0", pgtest.Query(t, l.target, `SELECT count(*) FROM pg_replication_origin WHERE position($1 in roname) > 0`, l.name))
	require.Equal(t, "0", pgtest.Query(t, l.source, `SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1`, l.name))
}

// plainText proves that what is for people to read holds nothing that a terminal obeys, and
// no line that a name has made.
func plainText(t *testing.T, text string) {
	t.Helper()
	require.True(t, utf8.ValidString(text), "%q", text)
	for line := range strings.SplitSeq(text, "\n") {
		for _, r := range line {
			require.False(t, r < ' ' || r == 0x7f || 0x80 <= r && r < 0xa0 || r == '\u202e', "%q", line)
		}
	}
}

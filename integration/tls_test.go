package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/internal/cluster"
	"pgapply/internal/pgtest"
)

// secured is a server that lets two roles in by TLS only: "certified" with a certificate, and
// "scrammed" with a password and a certificate. Its own certificate is for 127.0.0.1.
type secured struct {
	*cluster.Cluster
	authority *pgtest.Authority
	// log is where what the test looks at begins.
	log int64
}

const scramPassword = "Pa55-of-scrammed"

func secure(t *testing.T) *secured {
	s := &secured{Cluster: pgtest.Start(t, pgtest.With("log_connections", "on")), authority: pgtest.NewAuthority(t)}
	s.authority.TurnOnTLS(s.Cluster)
	pgtest.Exec(t, s.URI("postgres"), `set password_encryption = 'scram-sha-256'`,
		`create role certified superuser login`, `create role scrammed superuser login password '`+scramPassword+`'`)
	pgtest.Admit(t, s.Cluster, `
		hostssl all certified 127.0.0.1/32 cert
		hostssl all scrammed 127.0.0.1/32 scram-sha-256 clientcert=verify-full
		host all certified,scrammed 0.0.0.0/0 reject
		host all certified,scrammed ::/0 reject
`)
	s.log = s.LogSize()
	return s
}

// as is the connection string of a role into a database, with every safeguard there is.
func (s *secured) as(t *testing.T, role, database string) string {
	certificate, key := s.authority.Client(role)
	return fmt.Sprintf("host=127.0.0.1 port=%d user=%s dbname=%s sslmode=verify-full sslrootcert=%s sslcert=%s sslkey=%s",
		s.Port(), role, database, s.authority.Root, certificate, key)
}

// TestTLS: each command, and each connection that it opens, is as safe as its connection
// string says. The server refuses whatever comes without TLS.
func TestTLS(t *testing.T) {
	t.Parallel()
	server := secure(t)
	l := linkOf(t, server.Cluster, server.Cluster)
	database := func(uri string) string { return pgtest.Query(t, uri, `select current_database()`) }
	publisher, target := database(l.source), database(l.target)
	passfile := filepath.Join(t.TempDir(), "pgpass")
	require.NoError(t, os.WriteFile(passfile, []byte("*:*:*:*:"+scramPassword+"\n"), 0o600))
	l.onSource(`create table t (id int primary key, v text)`, `insert into t select g, 'row' from generate_series(1, 1000) g`,
		`create sequence s`, `create publication p for table t`)
	l.onTarget(`create sequence s`, `create table t (id int primary key, v text)`)

	for role, more := range map[string]string{
		"certified": "",
		"scrammed":  " channel_binding=require require_auth=scram-sha-256 passfile=" + passfile,
	} {
		t.Run(role, func(t *testing.T) {
			outside := l
			l := &link{t: t, name: outside.name + "_" + role, source: server.as(t, role, publisher) + more, target: server.as(t, role, target) + more}
			admin := server.URI(target)
			pgtest.Exec(t, admin, `truncate t`)
			p := l.spawn("--copy-data")
			p.says("streaming")
			pgtest.WaitFor(t, admin, `select count(*) >= 1000 from t`, "t")
			pgtest.Exec(t, server.URI(publisher), `insert into t select max(id) + 1, 'streamed' from t`)
			(&link{t: t, name: l.name, source: outside.source, target: outside.target}).catchUp()
			outside.same(`select * from t order by id`)
			ends := []string{"--name", l.name, "--source", l.source, "--target", l.target}
			commands := [][]string{
				{"check", "--publication", "p"},
				{"status"},
				{"wait", "--for", "current"},
				{"verify"},
				{"sequences"},
				{"cutover", "--dry-run"},
				{"conflicts", "list"},
				{"refresh"},
				{"resync", "public.t", "--yes"},
				{"pause"},
				{"resume"},
			}
			for _, command := range commands {
				stdout, stderr, code := shell(t, append(command, ends...)...)
				require.Zero(t, code, "%s: %s%s", command, stdout, stderr)
			}
			p.alive()

			// What each of them verifies is the server's name, and who vouches for it.
			for what, replace := range map[string]*strings.Replacer{
				"another name":      strings.NewReplacer("host=127.0.0.1", "host=localhost"),
				"another authority": strings.NewReplacer(server.authority.Root, pgtest.NewAuthority(t).Root),
			} {
				for _, command := range append(commands, []string{"run", "--publication", "p"}, []string{"cleanup", "--yes"}) {
					for _, end := range []int{3, 5} {
						if end == 3 && slices.Contains([]string{"conflicts", "pause", "resume", "resync", "cleanup"}, command[0]) {
							continue // the target is asked alone, or first
						}
						wrong := slices.Clone(ends)
						wrong[end] = replace.Replace(wrong[end])
						stdout, stderr, code := shell(t, append(command, wrong...)...)
						if command[0] == "status" && end == 3 {
							require.Contains(t, stdout+stderr, "certificate", "it reports the target all the same")
							continue
						}
						require.Contains(t, []int{2, 3, 4, 5}, code, "%s, %s: %s", command, what, stderr)
						require.Contains(t, stdout+stderr, "certificate", "%s, %s", command, what)
					}
				}
			}
			p.stop()
			_, stderr, code := shell(t, append([]string{"cleanup", "--yes"}, ends...)...)
			require.Zero(t, code, stderr)
		})
	}

	said, err := server.Log(server.log)
	require.NoError(t, err)
	opened := 0
	for line := range strings.Lines(said) {
		if strings.Contains(line, "connection authorized: user=certified") || strings.Contains(line, "connection authorized: user=scrammed") {
			require.Contains(t, line, "SSL enabled")
			opened++
		}
	}
	require.Greater(t, opened, 50)

	// And what has no certificate, or one that another authority made, does not get in.
	stranger, key := pgtest.NewAuthority(t).Client("certified")
	for _, uri := range []string{
		fmt.Sprintf("host=127.0.0.1 port=%d user=certified dbname=postgres sslmode=verify-full sslrootcert=%s", server.Port(), server.authority.Root),
		fmt.Sprintf("host=127.0.0.1 port=%d user=certified dbname=postgres sslmode=verify-full sslrootcert=%s sslcert=%s sslkey=%s", server.Port(), server.authority.Root, stranger, key),
		server.as(t, "certified", "postgres") + " user=scrammed passfile=" + passfile, // somebody else's
	} {
		_, stderr, code := shell(t, "status", "--target", uri)
		require.Contains(t, []int{2, 5}, code, stderr)
	}
}

package oracle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// form makes every end print values alike, whatever its database says.
const form = `SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET extra_float_digits = 1; SET bytea_output = 'hex';
	SET timezone = 'UTC'; SET search_path = public; SET quote_all_identifiers = off; SET default_transaction_isolation = 'read committed';`

// compare compares all tables of all ends.
func (p *play) compare(ctx context.Context) error {
	if err := p.sessions[""].exec(ctx, form); err != nil {
		return err
	}
	tables, err := p.published(ctx)
	if err != nil {
		return err
	}
	all := make([]string, len(tables))
	for i, t := range tables {
		all[i] = t.digest(t.filter)
	}
	want, err := p.digests(ctx, p.sessions[""], all)
	if err != nil {
		return err
	}
	for i, t := range tables {
		all[i] = t.digest("")
		p.result.Rows += want[i].rows
	}
	have, local, err := p.targets(ctx, all)
	if err != nil {
		return err
	}
	for i, t := range tables {
		for j, e := range p.ends {
			if e.native() && t.notNative || p.script.local[t.quoted] {
				continue
			}
			if have[j][i] != want[i] {
				return p.differ(ctx, e, t, t.rows(t.filter), p.sessions[""], t.rows(""), "the publisher")
			}
		}
	}
	if err := p.compareTargets(ctx, local); err != nil {
		return err
	}
	return p.compareConflicts(ctx)
}

// targets asks all targets for the published tables, and for all their tables.
func (p *play) targets(ctx context.Context, published []string) (have [][]digest, local [][][]string, err error) {
	have, local = make([][]digest, len(p.ends)), make([][][]string, len(p.ends))
	faults := make([]error, len(p.ends))
	var all sync.WaitGroup
	for i, e := range p.ends {
		all.Go(func() {
			if faults[i] = e.setup.exec(ctx, form); faults[i] != nil {
				return
			}
			if have[i], faults[i] = p.digests(ctx, e.setup, published); faults[i] != nil {
				return
			}
			local[i], faults[i] = e.setup.query(ctx, localTables)
		})
	}
	all.Wait()
	for i, fault := range faults {
		if fault != nil {
			// A column that an end lacks is a fault of the script.
			return nil, nil, fmt.Errorf("compare %s: %w", p.ends[i].name, fault)
		}
	}
	return have, local, nil
}

// localTables gives for each of the target's tables and partitions a query that
// digests whole rows, with the columns that the publisher knows nothing of.
const localTables = `SELECT n.nspname || '.' || c.relname,
	(SELECT rn.nspname || '.' || r.relname FROM pg_class r JOIN pg_namespace rn ON rn.oid = r.relnamespace
		WHERE r.oid = coalesce(pg_partition_root(c.oid), c.oid)),
	format('SELECT count(*), md5(coalesce(string_agg(r::text, E''\n'' ORDER BY r::text COLLATE "C"), '''')) FROM ONLY %I.%I r', n.nspname, c.relname),
	format('SELECT r::text FROM ONLY %I.%I r ORDER BY 1', n.nspname, c.relname)
	FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	WHERE c.relkind = 'r' AND n.nspname <> 'pgapply' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
		AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attidentity <> '')
	ORDER BY 1`

// compareTargets compares the engines' targets with the native one.
func (p *play) compareTargets(ctx context.Context, local [][][]string) error {
	if !p.ends[0].native() {
		return nil
	}
	skipped, err := p.notNative(ctx)
	if err != nil {
		return err
	}
	var queries []string
	var tables [][]string
	for _, table := range local[0] {
		if !slices.Contains(skipped, table[0]) && !slices.Contains(skipped, table[1]) {
			queries, tables = append(queries, table[2]), append(tables, table)
		}
	}
	var want []digest
	for i, e := range p.ends {
		have, err := p.digests(ctx, e.setup, queries)
		if err != nil {
			return fmt.Errorf("compare %s: %w", e.name, err)
		}
		if i == 0 {
			want = have
			continue
		}
		for j := range want {
			if have[j] != want[j] {
				return p.differ(ctx, e, published{name: tables[j][0]}, tables[j][3], p.ends[0].setup, tables[j][3], native)
			}
		}
	}
	return nil
}

// notNative are the tables and partitions that the native subscription does not have.
func (p *play) notNative(ctx context.Context) ([]string, error) {
	rows, err := p.sessions[""].query(ctx, `SELECT schemaname || '.' || tablename FROM pg_publication_tables GROUP BY schemaname, tablename HAVING NOT bool_or(pubname = 'p')`)
	names := make([]string, len(rows))
	for i, row := range rows {
		names[i] = row[0]
	}
	return names, err
}

// digest stands for all rows of a table.
type digest struct {
	rows int
	md5  string
}

func (p *play) digests(ctx context.Context, s *client, queries []string) ([]digest, error) {
	if len(queries) == 0 {
		return nil, nil
	}
	numbered := make([]string, len(queries))
	for i, query := range queries {
		numbered[i] = fmt.Sprintf("SELECT x.*, %d AS number FROM (%s) x", i, query)
	}
	rows, err := s.query(ctx, strings.Join(numbered, " UNION ALL ")+" ORDER BY number")
	if err != nil {
		return nil, err
	}
	digests := make([]digest, len(rows))
	for i, row := range rows {
		digests[i].md5 = row[1]
		if _, err := fmt.Sscan(row[0], &digests[i].rows); err != nil {
			return nil, err
		}
	}
	return digests, nil
}

// published is a published table as the publisher's catalogs describe it.
type published struct {
	name      string // schema.name, not quoted
	quoted    string
	columns   []string // quoted
	filter    string
	notNative bool
}

// published asks the publisher what it publishes now.
func (p *play) published(ctx context.Context) ([]published, error) {
	// Before 15 there are neither lists nor filters, and before 18 no generated column is
	// published, although 15 lists them.
	listed, filter := `true`, `NULL::text`
	if p.servers.Publisher >= 15 {
		listed, filter = `a.attname = ANY (t.attnames)`, `t.rowfilter`
	}
	if p.servers.Publisher < 18 {
		listed += ` AND a.attgenerated = ''`
	}
	rows, err := p.sessions[""].query(ctx, `SELECT t.schemaname || '.' || t.tablename, format('%I.%I', t.schemaname, t.tablename),
			(SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND `+listed+`),
			(SELECT string_agg(quote_ident(a.attname), E'\n' ORDER BY a.attname) FROM pg_attribute a
				WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND `+listed+`),
			coalesce(`+filter+`, ''), t.pubname <> 'p'
		FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
		JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
		ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	tables := make([]published, len(rows))
	for i, row := range rows {
		tables[i] = published{name: row[0], quoted: row[1], filter: row[4], notNative: row[5] == "t"}
		if row[2] != "0" {
			tables[i].columns = strings.Split(row[3], "\n")
		}
	}
	return tables, nil
}

// source is the table's rows as text. Types may differ between the ends, so each
// column is made text by itself.
func (t *published) source(filter string) string {
	columns := make([]string, len(t.columns))
	for i, c := range t.columns {
		columns[i] = c + "::text"
	}
	text := "SELECT ROW(" + strings.Join(columns, ", ") + ")::text AS r FROM " + t.quoted
	if filter != "" {
		text += " WHERE " + filter
	}
	return text
}

func (t *published) digest(filter string) string {
	return `SELECT count(*), md5(coalesce(string_agg(r, E'\n' ORDER BY r COLLATE "C"), '')) FROM (` + t.source(filter) + `) x`
}

func (t *published) rows(filter string) string {
	return t.source(filter) + ` ORDER BY 1`
}

// differ shows the rows that only one side has.
func (p *play) differ(ctx context.Context, e *end, t published, wanted string, from *client, had, what string) error {
	want, err := from.query(ctx, wanted)
	if err != nil {
		return err
	}
	have, err := e.setup.query(ctx, had)
	if err != nil {
		return err
	}
	count := map[string]int{}
	for _, row := range want {
		count[row[0]]++
	}
	for _, row := range have {
		count[row[0]]--
	}
	var lines []string
	for _, row := range slices.Concat(want, have) {
		n := count[row[0]]
		if n == 0 {
			continue
		}
		delete(count, row[0])
		side := what
		if n < 0 {
			side, n = e.name, -n
		}
		text := row[0]
		if len(text) > 300 {
			text = text[:300] + "…"
		}
		lines = append(lines, fmt.Sprintf("%d only at %s: %s", n, side, text))
	}
	log := ""
	if e.log != nil {
		log = "\n" + e.log.tail(10)
	}
	p.fail(e.name+" differs from "+what, "table %s: %s differs from %s, %d rows and %d\n%s%s", t.name, e.name, what, len(have), len(want),
		strings.Join(lines[:min(len(lines), 12)], "\n"), log)
	return nil
}

package verify

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pgapply/internal/source"
)

// Table is the name of a table, the same on both ends.
type Table struct{ Schema, Name string }

func (t Table) String() string { return t.Schema + "." + t.Name }

func (t Table) quoted() string { return identifier(t.Schema) + "." + identifier(t.Name) }

// table is what there is to know for comparing one.
type table struct {
	Table
	dialect *dialect
	columns []column
	// key has the places among columns of those that identify a row; empty for none.
	key []int
	// filter is the condition of published rows, or empty.
	filter string
	ends   [2]relation // by sourceEnd, targetEnd
	// mask makes the number of a row's chunk from the hash of its key.
	mask int64
	// sample, unless 1, is a power of two: one in so many keys is compared.
	sample int64
	// fault is why the table cannot be compared.
	fault error
}

const (
	sourceEnd = 0
	targetEnd = 1
)

// relation is a table on one end.
type relation struct {
	oid     string
	kind    string
	columns map[string]valueType
	// parts hold its rows: itself, or its partitions.
	parts []part
}

// part is a table of blocks.
type part struct {
	name  string
	pages int64
	// rows is the estimate of the last ANALYZE, -1 for none.
	rows int64
	// ranges: a range of blocks can be read without reading the others.
	ranges bool
}

func (r *relation) pages() (n int64) {
	for _, p := range r.parts {
		n += p.pages
	}
	return n
}

// rows estimates how many there are.
func (r *relation) rows() (n int64) {
	const perPage = 50 // where nothing is known
	for _, p := range r.parts {
		if p.rows < 0 || (p.rows == 0 && p.pages > 0) {
			n += p.pages * perPage
		} else {
			n += p.rows
		}
	}
	return n
}

const (
	// rowsInChunk is how many rows a chunk should have, maxChunks how many chunks there are
	// at most: each slice of a table may answer with a row for each of them.
	rowsInChunk = 256
	maxChunks   = 1 << 18
)

// describe reads what both ends have of the tables, in the order wanted.
func describe(ctx context.Context, options *Options, d *dialect, from, to *session) ([]*table, error) {
	published, faults, err := readPublished(ctx, options)
	if err != nil {
		return nil, &EndError{Err: err}
	}
	var ends [2]map[Table]*relation
	for end, s := range []*session{from, to} {
		if ends[end], err = relations(ctx, s, options.Tables); err != nil {
			return nil, &EndError{Target: end == targetEnd, Err: err}
		}
	}
	keys, err := readKeys(ctx, from, published)
	if err != nil {
		return nil, &EndError{Err: err}
	}
	tables := make([]*table, len(options.Tables))
	for i, name := range options.Tables {
		t := &table{Table: name, dialect: d, sample: max(options.Sample, 1)}
		tables[i] = t
		theirs, ours := ends[sourceEnd][name], ends[targetEnd][name]
		switch {
		case faults[name] != nil:
			t.fault = faults[name]
		case published[name] == nil || theirs == nil:
			t.fault = fmt.Errorf("it is not published by %s", strings.Join(options.Publications, ", "))
		case ours == nil:
			t.fault = fmt.Errorf("the target has no such table")
		case ours.kind != "r" && ours.kind != "p":
			t.fault = fmt.Errorf("it is no table on the target")
		default:
			t.ends = [2]relation{*theirs, *ours}
			t.fault = t.match(published[name], keys[theirs.oid])
		}
	}
	return tables, nil
}

// match finds each published column, and the key, on both ends.
func (t *table) match(published *source.CopyTable, keys [][]string) error {
	t.filter = published.Filter
	places := make(map[string]int)
	for _, c := range published.Columns {
		local, found := t.ends[targetEnd].columns[c.Name]
		if !found {
			return fmt.Errorf("the target's table has no column %q", c.Name)
		}
		places[c.Name] = len(t.columns)
		t.columns = append(t.columns, column{name: c.Name, source: t.ends[sourceEnd].columns[c.Name], target: local})
	}
	if len(t.columns) == 0 {
		return fmt.Errorf("it has no columns to compare")
	}
	for _, names := range keys {
		key := make([]int, 0, len(names))
		for _, name := range names {
			if place, found := places[name]; found {
				key = append(key, place)
			}
		}
		if len(key) == len(names) {
			t.key = key
			break
		}
	}
	rows, chunks := max(t.ends[sourceEnd].rows(), t.ends[targetEnd].rows()), int64(1)
	for chunks < maxChunks && chunks*rowsInChunk < rows {
		chunks *= 2
	}
	t.mask = chunks - 1
	return nil
}

// readPublished describes the published tables, each of which may have a fault of its own.
func readPublished(ctx context.Context, options *Options) (map[Table]*source.CopyTable, map[Table]error, error) {
	reader, err := source.OpenTableReader(ctx, source.Options{URI: options.Source.URI, Passfile: options.Source.Passfile, ApplicationName: options.ApplicationName})
	if err != nil {
		return nil, nil, err
	}
	defer reader.Close()
	defer context.AfterFunc(ctx, reader.Abort)()
	wanted := make([]source.Table, len(options.Tables))
	for i, t := range options.Tables {
		wanted[i] = source.Table(t)
	}
	found, different, err := reader.CopyTables(options.Publications, wanted)
	if err != nil {
		return nil, nil, err
	}
	published, faults := make(map[Table]*source.CopyTable, len(found)), make(map[Table]error)
	for _, t := range found {
		published[Table(t.Table)] = t
	}
	for _, fault := range different {
		faults[Table(fault.Table)] = fault
	}
	return published, faults, nil
}

// relations reads columns and parts of the tables from one end.
func relations(ctx context.Context, s *session, names []Table) (map[Table]*relation, error) {
	if len(names) == 0 {
		return nil, nil
	}
	list := make([]string, len(names))
	for i, t := range names {
		list[i] = "(" + literal(t.Schema) + ", " + literal(t.Name) + ")"
	}
	wanted := `(n.nspname, c.relname) IN (` + strings.Join(list, ", ") + `)`
	columns, err := s.query(ctx, `
		SELECT n.nspname, c.relname, c.oid, c.relkind, a.attname, b.oid, pg_catalog.format_type(b.oid, b.modifier)
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		CROSS JOIN LATERAL (WITH RECURSIVE base (oid, next, modifier, own) AS (
			SELECT t.oid, t.typbasetype, a.atttypmod, t.typtypmod FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid
			UNION ALL
			SELECT t.oid, t.typbasetype, base.own, t.typtypmod FROM base JOIN pg_catalog.pg_type t ON t.oid = base.next
		) SELECT oid, modifier FROM base WHERE next = 0) b
		WHERE `+wanted)
	if err != nil {
		return nil, err
	}
	found, byOID := make(map[Table]*relation), make(map[string]*relation)
	for _, row := range columns {
		r := byOID[row[2]]
		if r == nil {
			r = &relation{oid: row[2], kind: row[3], columns: make(map[string]valueType)}
			byOID[row[2]], found[Table{row[0], row[1]}] = r, r
		}
		oid, err := strconv.ParseUint(row[5], 10, 32)
		if err != nil {
			return nil, err
		}
		r.columns[row[4]] = valueType{uint32(oid), row[6]}
	}
	return found, parts(ctx, s, wanted, byOID)
}

// parts adds what holds the rows of the tables.
func parts(ctx context.Context, s *session, wanted string, byOID map[string]*relation) error {
	pending, heap := "", "c.relkind = 'r'"
	if s.major() >= 14 {
		pending = " AND NOT i.inhdetachpending"
	}
	if s.major() >= 12 {
		heap = "c.relam = (SELECT oid FROM pg_catalog.pg_am WHERE amname = 'heap')"
	}
	rows, err := s.query(ctx, `
		WITH RECURSIVE tree (root, oid, kind) AS (
			SELECT c.oid, c.oid, c.relkind FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE `+wanted+`
			UNION ALL
			SELECT t.root, c.oid, c.relkind FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid`+pending+`
			JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid WHERE t.kind = 'p'
		)
		SELECT t.root, n.nspname, c.relname, c.reltuples::pg_catalog.int8,
			coalesce(pg_catalog.pg_relation_size(c.oid), 0) / pg_catalog.current_setting('block_size')::pg_catalog.int8, `+heap+`
		FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind <> 'p' ORDER BY t.root, n.nspname, c.relname`)
	if err != nil {
		return err
	}
	const rangesSince = 14 // before, a range of ctid is found by reading everything
	for _, row := range rows {
		r := byOID[row[0]]
		if r == nil {
			continue // a table without columns
		}
		p := part{name: Table{row[1], row[2]}.quoted(), ranges: row[5] == "t" && s.major() >= rangesSince}
		if p.rows, err = strconv.ParseInt(row[3], 10, 64); err != nil {
			return err
		}
		if p.pages, err = strconv.ParseInt(row[4], 10, 64); err != nil {
			return err
		}
		r.parts = append(r.parts, p)
	}
	return nil
}

// readKeys reads the columns of the indexes that identify rows, by the tables' OIDs on
// the publisher: the replica identity first, then the primary key.
func readKeys(ctx context.Context, s *session, published map[Table]*source.CopyTable) (map[string][][]string, error) {
	var oids []string
	for _, t := range published {
		oids = append(oids, strconv.FormatUint(uint64(t.OID), 10))
	}
	if len(oids) == 0 {
		return nil, nil
	}
	slices.Sort(oids)
	count := "i.indnatts"
	if s.major() >= 11 {
		count = "i.indnkeyatts"
	}
	rows, err := s.query(ctx, `
		SELECT i.indrelid, i.indexrelid, a.attname
		FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
		CROSS JOIN LATERAL pg_catalog.generate_series(0, `+count+` - 1) k
		JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[k]
		WHERE i.indrelid IN (`+strings.Join(oids, ", ")+`) AND i.indisunique AND i.indisvalid AND i.indexprs IS NULL AND i.indpred IS NULL
			AND (i.indisprimary OR c.relreplident = 'i' AND i.indisreplident)
		ORDER BY i.indrelid, i.indisreplident DESC, i.indexrelid, k`)
	if err != nil {
		return nil, err
	}
	keys, last := make(map[string][][]string), ""
	for _, row := range rows {
		list := keys[row[0]]
		if row[1] != last {
			list, last = append(list, nil), row[1]
		}
		list[len(list)-1] = append(list[len(list)-1], row[2])
		keys[row[0]] = list
	}
	return keys, nil
}

// hash and keyHash are SQL for the hash of a row and of its key, on one end. Without a
// key the row is its own.
func (t *table) hash(end int) string {
	return t.dialect.hashOfAll(t.columns, t.places(), end == sourceEnd)
}

func (t *table) keyHash(end int) string {
	if len(t.key) == 0 {
		return t.hash(end)
	}
	return t.dialect.hashOfAll(t.columns, t.key, end == sourceEnd)
}

func (t *table) places() []int {
	all := make([]int, len(t.columns))
	for i := range all {
		all[i] = i
	}
	return all
}

// keyNames are the names of the key's columns.
func (t *table) keyNames() []string {
	names := make([]string, len(t.key))
	for i, place := range t.key {
		names[i] = t.columns[place].name
	}
	return names
}

// whole names the table with its partitions, and without tables that inherit from it.
func (t *table) whole(end int) string {
	if t.ends[end].kind == "p" {
		return t.quoted()
	}
	return "ONLY " + t.quoted()
}

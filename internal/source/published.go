package source

import (
	"context"
	"fmt"
)

// Published is a table as the publications publish it.
type Published struct {
	Table
	// Identity is the replica identity as in pg_class.relreplident: d, n, f or i.
	Identity byte
	// Inserts to Truncates say which changes are published.
	Inserts, Updates, Deletes, Truncates bool
	// ColumnLists counts the different column lists of the publications: more than
	// one cannot be decoded.
	ColumnLists int
	// Columns are those that are sent, in their order.
	Columns []PublishedColumn
}

// PublishedColumn is a column of a published table.
type PublishedColumn struct {
	Name string
	// Key columns are part of the replica identity.
	Key bool
}

// HasIdentity tells whether updates and deletes can be told apart: without it the
// publisher itself refuses those that are published.
func (p *Published) HasIdentity() bool {
	if p.Identity == 'f' {
		return true
	}
	for _, column := range p.Columns {
		if column.Key {
			return true
		}
	}
	return false
}

// Published returns what the publications publish, table by table in the order of
// [Conn.Tables], with columns and replica identity.
func (c *Conn) Published(ctx context.Context, publications []string) ([]Published, error) {
	tables, err := c.Tables(ctx, publications)
	if err != nil || len(tables) == 0 {
		return nil, err
	}
	rows, err := c.Query(ctx, c.publishedSQL(publications))
	if err != nil {
		return nil, fmt.Errorf("read the published tables: %w", err)
	}
	list := make([]Published, len(tables))
	place := make(map[Table]*Published, len(tables))
	for i, table := range tables {
		list[i].Table = table
		place[table] = &list[i]
	}
	for row := range rows {
		table := place[Table{Schema: text(rows, row, 0), Name: text(rows, row, 1)}]
		if table == nil {
			continue // a leaf that comes under its root's name
		}
		yes := func(column int) bool { return text(rows, row, column) == "t" }
		table.Identity = text(rows, row, 2)[0]
		table.Inserts, table.Updates, table.Deletes, table.Truncates = yes(3), yes(4), yes(5), yes(6)
		if _, err := fmt.Sscan(text(rows, row, 7), &table.ColumnLists); err != nil {
			return nil, fmt.Errorf("read the published tables: %w", err)
		}
		if name := text(rows, row, 8); name != "" { // else a table without columns
			table.Columns = append(table.Columns, PublishedColumn{Name: name, Key: yes(9)})
		}
	}
	return list, nil
}

// publishedSQL gives a row for each column. The replica identity is that of
// RelationGetIndexList (relcache.c): an index that is not valid, not immediate or
// partial is none.
func (c *Conn) publishedSQL(publications []string) string {
	since := func(major int, expression, absent string) string {
		if c.major() >= major {
			return expression
		}
		return absent
	}
	return `
		WITH published (schemaname, tablename, inserts, updates, deletes, truncates, lists, attnames) AS (
			SELECT t.schemaname, t.tablename,
				pg_catalog.bool_or(p.pubinsert), pg_catalog.bool_or(p.pubupdate), pg_catalog.bool_or(p.pubdelete),
				` + since(11, "pg_catalog.bool_or(p.pubtruncate)", "false") + `,
				` + since(15, "greatest(pg_catalog.count(DISTINCT t.attnames), 1), pg_catalog.max(t.attnames)", "1, NULL::pg_catalog.name[]") + `
			FROM pg_catalog.pg_publication_tables t JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname
			WHERE p.pubname IN (` + literals(publications) + `) AND t.schemaname <> ` + literal(stateSchema) + `
			GROUP BY t.schemaname, t.tablename
		)
		SELECT p.schemaname, p.tablename, c.relreplident, p.inserts, p.updates, p.deletes, p.truncates, p.lists, a.attname,
			c.relreplident = 'f' OR EXISTS (
				SELECT FROM pg_catalog.pg_index i
				WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate AND i.indisunique AND i.indpred IS NULL
					AND (c.relreplident = 'd' AND i.indisprimary OR c.relreplident = 'i' AND i.indisreplident)
					AND a.attnum = ANY (` + since(11, "(i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]", "i.indkey::pg_catalog.int2[]") + `))
		FROM published p
		JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
		JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
		LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
			AND ` + since(18, "true", since(12, "a.attgenerated = ''", "true")) + `
			AND ` + since(15, "a.attname = ANY (p.attnames)", "true") + `
		ORDER BY p.schemaname, p.tablename, a.attnum`
}

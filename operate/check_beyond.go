package operate

import (
	"context"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/internal/source"
)

// beyond is what the publisher's database has and replication does not bring.
type beyond struct {
	largeObjects int
	// The others are named as schema.table.
	views, foreign, unlogged, unpublished []string
}

func (p *publisherFacts) gatherBeyond(ctx context.Context, conn *source.Conn) error {
	rows, err := conn.Query(ctx, `SELECT pg_catalog.count(*) FROM pg_catalog.pg_largeobject_metadata`)
	if err != nil {
		return fmt.Errorf("count the large objects of the publisher: %w", err)
	}
	if p.beyond.largeObjects, err = strconv.Atoi(string(rows[0][0])); err != nil {
		return fmt.Errorf("count the large objects of the publisher: %w", err)
	}
	published := make(map[string]bool, len(p.published))
	for i := range p.published {
		published[p.published[i].Schema+"."+p.published[i].Name] = true
	}
	// A partition comes with its root, or by itself where the publication says so. What
	// belongs to an extension is the extension's.
	name, readable := `n.nspname || '.' || c.relname`, func(name []byte) (string, error) { return string(name), nil }
	if p.encoding == ascii { // whose names may be no text in any encoding
		name = `pg_catalog.encode(pg_catalog.convert_to(` + name + `, 'SQL_ASCII'), 'hex')`
		readable = func(name []byte) (string, error) {
			bytes, err := hex.DecodeString(string(name))
			return string(bytes), err
		}
	}
	inParts, err := publishedInParts(ctx, conn, name, readable, published)
	if err != nil {
		return err
	}
	rows, err = conn.Query(ctx, `
		SELECT `+name+`, c.relkind, c.relpersistence
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p', 'm', 'f') AND c.relpersistence <> 't' AND NOT c.relispartition
			AND n.nspname <> 'information_schema' AND n.nspname <> 'pgapply' AND n.nspname !~ '^pg_'
			AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 1259 AND d.objid = c.oid AND d.deptype = 'e')
		ORDER BY 1`)
	if err != nil {
		return fmt.Errorf("look for what the publisher does not replicate: %w", err)
	}
	for _, row := range rows {
		full, err := readable(row[0])
		if err != nil {
			return fmt.Errorf("look for what the publisher does not replicate: %w", err)
		}
		name, kind, persistence := strings.ToValidUTF8(full, "?"), string(row[1]), string(row[2])
		switch {
		case kind == "m":
			p.beyond.views = append(p.beyond.views, name)
		case kind == "f":
			p.beyond.foreign = append(p.beyond.foreign, name)
		case persistence == "u":
			p.beyond.unlogged = append(p.beyond.unlogged, name)
		case !published[full] && !inParts[full]:
			p.beyond.unpublished = append(p.beyond.unpublished, name)
		}
	}
	return nil
}

// publishedInParts returns the partitioned tables all of whose leaves are published, which is
// how a publication without publish_via_partition_root has them. name is the SQL for a
// table's name, and readable reads what it gives.
func publishedInParts(ctx context.Context, conn *source.Conn, name string, readable func([]byte) (string, error), published map[string]bool) (map[string]bool, error) {
	rows, err := conn.Query(ctx, `
		WITH RECURSIVE part AS (
			SELECT c.oid AS root, `+name+` AS name, c.oid AS leaf
			FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
			WHERE c.relkind = 'p' AND NOT c.relispartition
			UNION ALL
			SELECT part.root, part.name, i.inhrelid FROM part JOIN pg_catalog.pg_inherits i ON i.inhparent = part.leaf)
		SELECT part.name, `+name+`
		FROM part JOIN pg_catalog.pg_class c ON c.oid = part.leaf JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind <> 'p'`)
	if err != nil {
		return nil, fmt.Errorf("look for the partitions of the publisher: %w", err)
	}
	all := make(map[string]bool)
	for _, row := range rows {
		root, err := readable(row[0])
		if err != nil {
			return nil, fmt.Errorf("look for the partitions of the publisher: %w", err)
		}
		leaf, err := readable(row[1])
		if err != nil {
			return nil, fmt.Errorf("look for the partitions of the publisher: %w", err)
		}
		before, known := all[root]
		all[root] = published[leaf] && (before || !known)
	}
	return all, nil
}

// checkBeyond says what has to come to the target in another way.
func checkBeyond(f *facts) []Finding {
	const subject = "not replicated"
	b := &f.publisher.beyond
	parts := []string{"DDL", "sequences, which `pgapply sequences` copies"}
	for _, kind := range []struct {
		names []string
		noun  string
	}{{b.unpublished, "table that is not published"}, {b.views, "materialized view"}, {b.foreign, "foreign table"}} {
		if len(kind.names) > 0 {
			parts = append(parts, named(kind.names, kind.noun))
		}
	}
	findings := ok(subject, "%s", strings.Join(parts, "; "))
	if len(b.unlogged) > 0 {
		findings = append(findings, warning(subject, "ALTER TABLE ... SET LOGGED on the publisher, or copy it by other means",
			"%s: changes of it are not in the WAL", named(b.unlogged, "unlogged table"))...)
	}
	if f.target != nil && len(f.target.emptyViews) > 0 {
		findings = append(findings, warning(subject, "on the target, after the copy: REFRESH MATERIALIZED VIEW, each of them",
			"%s of the target without data: replication does not fill them", named(f.target.emptyViews, "materialized view"))...)
	}
	if b.largeObjects > 0 {
		findings = append(findings, warning(subject, "copy them by other means, as with pg_dump --large-objects, when nobody writes to them",
			"%s: no publication has them", counted(int64(b.largeObjects), "large object"))...)
	}
	return findings
}

// named counts things and names the first of them.
func named(names []string, noun string) string {
	const most = 5
	text := counted(int64(len(names)), noun)
	if len(names) > 1 && strings.HasPrefix(noun, "table that is") {
		text = count(int64(len(names))) + " tables that are not published"
	}
	text += " (" + strings.Join(names[:min(most, len(names))], ", ")
	if len(names) > most {
		text += " …"
	}
	return text + ")"
}

// materializedViews names those of the database for which the condition on pg_class holds.
// What belongs to an extension is the extension's.
func materializedViews(ctx context.Context, conn *pgx.Conn, condition string) ([]string, error) {
	rows, err := conn.Query(ctx, `
		SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind = 'm' AND `+condition+`
			AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = c.oid AND d.deptype = 'e')
		ORDER BY 1`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

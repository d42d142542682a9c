package tablesync

import (
	"context"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"pgapply/origin"
)

// Index is an index of the target, or a constraint that one stands behind, which was
// taken away for the time of the copy.
type Index struct {
	Table Table
	Name  string
	// Definition makes it again: one or more SQL statements.
	Definition string
}

// IndexRecorder keeps the definitions of indexes that are taken away, so that a process
// which is killed loses none.
type IndexRecorder interface {
	// Dropping is called within the target transaction that drops the indexes of a table:
	// what exec does commits with it. An error ends the whole copy.
	Dropping(ctx context.Context, table Table, indexes []Index, exec Exec) error
}

// secondaryIndexes lists what can be dropped and made again exactly as it was. The
// primary key and the replica identity stay, since rows are found by them, and so does
// what something depends on, such as another table's foreign key, what belongs to a
// partitioned index or an extension, and what has properties beside its definition.
const secondaryIndexes = `
	SELECT ic.relname, pg_catalog.pg_get_indexdef(i.indexrelid), coalesce(ts.spcname, ''),
		pg_catalog.obj_description(i.indexrelid, 'pg_class'),
		k.conname, coalesce(k.contype = 'u' AND coalesce(pg_catalog.to_jsonb(k) ->> 'conperiod', 'false') = 'false', false),
		pg_catalog.pg_get_constraintdef(k.oid), k.condeferrable, k.condeferred,
		pg_catalog.obj_description(k.oid, 'pg_constraint')
	FROM pg_catalog.pg_index i
	JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
	LEFT JOIN pg_catalog.pg_tablespace ts ON ts.oid = ic.reltablespace
	LEFT JOIN pg_catalog.pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid AND k.contype IN ('u', 'x')
	WHERE i.indrelid = $1::pg_catalog.oid AND ic.relkind = 'i' AND i.indisvalid AND i.indislive
		AND NOT i.indisprimary AND NOT i.indisreplident AND NOT i.indisclustered
		AND NOT EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = i.indexrelid)
		AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d
			WHERE d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = i.indexrelid
				OR d.refclassid = 'pg_catalog.pg_constraint'::pg_catalog.regclass AND d.refobjid = k.oid AND d.deptype <> 'i'
				OR d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.objid = i.indexrelid AND d.deptype = 'e')
		AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid = i.indexrelid AND a.attstattarget >= 0)
		AND NOT (k.oid IS NOT NULL AND (k.contype = 'x' OR pg_catalog.to_jsonb(k) ->> 'conperiod' = 'true')
			AND (ic.reloptions IS NOT NULL OR ic.reltablespace <> 0))
	ORDER BY ic.relname`

// droppable is an Index and what drops it.
type droppable struct {
	Index
	drop string
}

// droppables lists the secondary indexes of a table.
func droppables(session origin.Session, table Table, oid uint32) ([]droppable, error) {
	rows, err := session.Query(secondaryIndexes, strconv.FormatUint(uint64(oid), 10))
	if err != nil {
		return nil, err
	}
	list := make([]droppable, len(rows))
	for i, row := range rows {
		list[i] = define(table, row)
	}
	return list, nil
}

// define writes the statements for one row of secondaryIndexes. A unique constraint is
// put upon an index that is there, which keeps what the index alone knows; other
// constraints make their own.
func define(table Table, row [][]byte) droppable {
	name, definition, tablespace := string(row[0]), string(row[1]), string(row[2])
	on := quote(table.Schema, table.Name)
	d := droppable{Index: Index{Table: table, Name: name}, drop: "DROP INDEX " + quote(table.Schema, name)}
	statements := []string{"SET LOCAL default_tablespace = " + literal(tablespace)}
	constraint := string(row[4])
	unique := string(row[5]) == "t"
	if constraint == "" || unique {
		statements = append(statements, definition)
	}
	if constraint != "" {
		d.drop = "ALTER TABLE " + on + " DROP CONSTRAINT " + quote(constraint)
		add := "ALTER TABLE " + on + " ADD CONSTRAINT " + quote(constraint) + " "
		if unique {
			add += "UNIQUE USING INDEX " + quote(name)
			if string(row[7]) == "t" {
				add += " DEFERRABLE"
			}
			if string(row[8]) == "t" {
				add += " INITIALLY DEFERRED"
			}
		} else {
			add += string(row[6])
		}
		statements = append(statements, add)
	}
	if row[3] != nil {
		statements = append(statements, "COMMENT ON INDEX "+quote(table.Schema, name)+" IS "+literal(string(row[3])))
	}
	if row[9] != nil {
		statements = append(statements, "COMMENT ON CONSTRAINT "+quote(constraint)+" ON "+on+" IS "+literal(string(row[9])))
	}
	d.Definition = strings.Join(statements, ";\n")
	return d
}

// literal quotes a string under standard_conforming_strings, which the session forces.
func literal(value string) string { return "'" + strings.ReplaceAll(value, "'", "''") + "'" }

// attachedIndexes counts the secondary indexes of a table that belong to a partitioned one.
const attachedIndexes = `
	SELECT pg_catalog.count(*) FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
	WHERE i.indrelid = $1::pg_catalog.oid AND NOT i.indisprimary AND NOT i.indisreplident
		AND (c.relkind = 'I' OR EXISTS (SELECT FROM pg_catalog.pg_inherits h WHERE h.inhrelid = i.indexrelid))`

// partitionedStay says that the indexes of a partitioned table, or what a partition has
// of them, are not deferred. Dropped at the root they are gone from all partitions, each
// under a name of its own, and meanwhile partitions may come and go: to make again just
// what there was takes more than a list of statements.
func (j *job) partitionedStay(t *table) error {
	rows, err := j.session.Query(attachedIndexes, strconv.FormatUint(uint64(t.local.oid), 10))
	if err != nil {
		return err
	}
	if stay := string(rows[0][0]); stay != "0" {
		j.Log.Info("indexes stay during the copy, since they are those of a partitioned table",
			zap.String("schema", t.Schema), zap.String("table", t.Name), zap.String("indexes", stay))
	}
	return nil
}

// deferIndexes drops the secondary indexes of a table that is empty, or is emptied here,
// in one transaction with their being recorded. Where the role may not drop them, they stay.
func (j *job) deferIndexes(ctx context.Context, t *table) error {
	if t.local.kind != "r" {
		return j.partitionedStay(t)
	}
	if err := j.session.begin(); err != nil {
		return err
	}
	err := j.dropIndexes(ctx, t)
	if err == nil {
		err = j.partitionedStay(t)
	}
	if err == nil {
		if err = j.session.commit(false); err == nil {
			t.clean = false
		}
		return err
	}
	if lost(err) || serious(err) {
		return err
	}
	if rolled := j.session.rollback(); rolled != nil {
		return rolled
	}
	j.Log.Warn("the indexes of a table stay during its copy", zap.String("schema", t.Schema), zap.String("table", t.Name), zap.Error(err))
	return nil
}

func (j *job) dropIndexes(ctx context.Context, t *table) error {
	if err := j.session.exec("LOCK TABLE ONLY " + quote(t.Schema, t.Name) + " IN ACCESS EXCLUSIVE MODE"); err != nil {
		return err
	}
	if t.clean {
		if err := j.session.exec(t.cleanSQL()); err != nil {
			return err
		}
	}
	rows, err := j.session.Query("SELECT EXISTS (SELECT FROM ONLY " + quote(t.Schema, t.Name) + ")")
	if err != nil {
		return err
	}
	if string(rows[0][0]) == "t" {
		return nil // they are of use to whoever reads those rows
	}
	list, err := droppables(j.session, t.Table, t.local.oid)
	if err != nil || len(list) == 0 {
		return err
	}
	indexes, drops := make([]Index, len(list)), make([]string, len(list))
	for i, d := range list {
		indexes[i], drops[i] = d.Index, d.drop
	}
	if err := j.session.exec(strings.Join(drops, ";\n")); err != nil {
		return err
	}
	return j.record(func(exec Exec) error { return j.Indexes.Dropping(ctx, t.Table, indexes, exec) })
}

// record lets a recorder write within the open transaction. A refusal of the target is a
// matter of the recorder, but for a lost connection.
func (j *job) record(write func(Exec) error) error {
	var refused error
	err := write(func(sql string, parameters ...string) error {
		_, refused = j.session.Query(sql, parameters...)
		return refused
	})
	switch {
	case err == nil:
		return nil
	case refused != nil && lost(refused):
		return refused // another session may do
	}
	return &RecorderError{Err: err}
}

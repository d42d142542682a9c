// Package catalog knows the target's side of a replicated table: which table a
// publisher's relation is, which of its columns take the values, and how a row
// of it is found again.
//
//	decoder.Relation (publisher) + pg_class, pg_attribute, pg_index (target) ──► Table
//
// Everything is matched by name, as the native subscription does
// (src/backend/replication/logical/relation.c); type OIDs of the publisher mean
// nothing here. The package reads catalogs through the session that will apply
// the changes; it neither caches nor writes.
package catalog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"pgapply/decoder"
)

// Querier runs one statement on the target and returns its rows as text; a nil
// field is NULL.
type Querier interface {
	Query(sql string, parameters ...string) ([][][]byte, error)
}

// QuerierOfAll runs several statements with the same parameters, in one round trip if it
// can, and returns the rows of each like a Querier.
type QuerierOfAll interface {
	QueryAll(sql []string, parameters ...string) ([][][][]byte, error)
}

// Table is a publisher's relation bound to a table of the target. It is immutable.
type Table struct {
	Schema, Name string
	OID          uint32
	// Partitioned tables are written through their root.
	Partitioned bool
	// Columns holds the target's column for each column of the publisher's
	// relation, in the publisher's order.
	Columns []Column
	// Version identifies the definition that was read; see PinSQL.
	Version Version
	// RowByRow names what can tell whether several changes are one statement, and in which
	// order. It is empty where nothing can.
	RowByRow string
	// TextCopy says that a column's type has no input function for the binary form, which
	// COPY asks for even where all values are NULL.
	TextCopy bool
	// Search says which rows an UPDATE or DELETE means.
	Search Search
	// unique are the columns of its unique indexes, as keysQuery has read them.
	unique [][][]byte
	// searchFault is why rows cannot be searched for, when Search is Impossible.
	searchFault error
}

// Column is a column of the target that takes values from the publisher.
type Column struct {
	Name string
	// TypeOID is the type to give values as: the column's own, a domain's OID where
	// it is a domain. Only for binary values that the column can take by a
	// lossless conversion it is the publisher's.
	TypeOID uint32
	// Equality compares two values of the column, ready for an SQL text, such as
	// OPERATOR(pg_catalog.=). It is empty for types without a default equality.
	Equality string
	// Collation is that of the key's index where it is not the column's own, ready
	// for an SQL text; empty otherwise.
	Collation string
	// Key marks the columns of the key that rows are searched by, and Hashed those whose
	// equality also has hashes.
	Key, Hashed bool
	// IdentityAlways columns refuse to be set by an UPDATE.
	IdentityAlways bool
	// ArrayOID is the type of arrays of TypeOID, and Delimiter what separates the
	// elements in the text form of one. It is 0 where unnest does not give the elements
	// back: they are arrays or composite themselves.
	ArrayOID  uint32
	Delimiter byte
	// TakesBinary says that a value in the publisher's binary form means the same
	// here, when it is given as TypeOID, and Widens that the server has to convert it then.
	TakesBinary, Widens bool
	// NamesObjects says that values name objects of a server, as those of regclass do, and
	// are numbers in binary form, most of which mean nothing on another server.
	NamesObjects bool
}

// Takes tells whether a value in the publisher's binary form means the same here.
func (c *Column) Takes(value []byte) bool {
	const firstGenbki = 10000 // below, numbers are written in the server's source (transam.h)
	return c.TakesBinary || c.NamesObjects && len(value) == 4 && binary.BigEndian.Uint32(value) < firstGenbki
}

// Search is how a row that an UPDATE or DELETE names is found.
type Search uint8

// The ways to find a row. See FindReplTupleInLocalRel in worker.c.
const (
	// ByKey compares the columns of the replica identity index or primary key.
	ByKey Search = iota
	// ByRow compares all columns and takes the first row that is equal.
	ByRow
	// Impossible: neither end has what it takes. SearchFault says why.
	Impossible
)

// SearchFault returns why UPDATE and DELETE cannot be applied to the table, or nil.
func (t *Table) SearchFault() error { return t.searchFault }

// QualifiedName returns schema.name quoted for SQL.
func (t *Table) QualifiedName() string { return pgx.Identifier{t.Schema, t.Name}.Sanitize() }

// MismatchError says why a publisher's relation cannot be applied to the target.
// The texts are those of the native subscription.
type MismatchError struct {
	Schema, Table string
	Reason        string
	Hint          string
	// Missing says that the target has no relation of that name at all.
	Missing bool
}

func (e *MismatchError) Error() string { return e.Reason }

// Queries are what Load asks of a table, whose schema and name are the parameters: all of
// it in one call of QueryAll. Whoever asks for several tables at once can give Load the
// answers.
func Queries() []string { return []string{headQuery, columnsQuery, keyQuery, keysQuery} }

// Load binds the publisher's relation to the table of the same name. binary says
// that the publisher sends values in binary form where it can. It returns a
// *MismatchError when the two do not fit.
func Load(querier QuerierOfAll, relation *decoder.Relation, binary bool) (*Table, error) {
	table := &Table{Schema: relation.Namespace, Name: relation.Name}
	answers, err := querier.QueryAll(Queries(), table.Schema, table.Name)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", table.QualifiedName(), err)
	}
	if err := table.readHead(answers[0]); err != nil {
		return nil, err
	}
	columns, err := readColumns(answers[1])
	if err != nil {
		return nil, fmt.Errorf("read the columns of %s: %w", table.QualifiedName(), err)
	}
	if err := table.mapColumns(relation, columns, binary); err != nil {
		return nil, err
	}
	table.chooseSearch(relation, table.readKey(answers[2]))
	table.unique = answers[3]
	if len(table.Columns) == 0 {
		table.RowByRow = "it has no columns"
	}
	return table, nil
}

func (t *Table) mismatch(hint, format string, arguments ...any) *MismatchError {
	return &MismatchError{Schema: t.Schema, Table: t.Name, Hint: hint, Reason: fmt.Sprintf(format, arguments...)}
}

// relationKinds names what pg_class.relkind stands for where it is not a table.
var relationKinds = map[string]string{
	"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence",
	"i": "an index", "I": "a partitioned index", "c": "a composite type", "t": "a TOAST table",
}

// The queries are sent together, so each of them looks the table up by its name: $1 and $2.
const (
	headQuery = `
		SELECT c.oid, c.relkind, c.relreplident, c.xmin, ` + columnsVersion + `, ` + noticedBy + `, ` + batchesVersion + `
		FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2`
	theTable = `(SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = $1 AND c.relname = $2)`
)

func (t *Table) readHead(rows [][][]byte) error {
	if len(rows) == 0 {
		missing := t.mismatch("create the table on the target, with at least the columns that are published, or have its changes left out with --missing-table skip",
			`logical replication target relation "%s.%s" does not exist`, t.Schema, t.Name)
		missing.Missing = true
		return missing
	}
	kind := string(rows[0][1])
	if kind != "r" && kind != "p" {
		return t.mismatch("changes can be applied to tables and partitioned tables only",
			`cannot use relation "%s.%s" as logical replication target: it is %s`, t.Schema, t.Name, relationKinds[kind])
	}
	oid, err := strconv.ParseUint(string(rows[0][0]), 10, 32)
	if err != nil {
		return fmt.Errorf("look up %s: %w", t.QualifiedName(), err)
	}
	t.OID, t.Partitioned = uint32(oid), kind == "p"
	t.Version = Version{Table: string(rows[0][0]), TableXID: string(rows[0][3]), Columns: string(rows[0][4]), Index: "0", IndexXID: "0", Batches: string(rows[0][6])}
	t.RowByRow = string(rows[0][5])
	return nil
}

type localColumn struct {
	Column
	generated bool
	// receives: the type has an input function for the binary form.
	receives bool
	// The type below all domains.
	baseType                     uint32
	baseTypeSchema, baseTypeName string
}

// columnsQuery finds for each column the operator that its type's default btree
// or hash operator class calls equality, as lookup_type_cache does (typcache.c):
// by the type itself, the pseudo-type that stands for its kind, or a type that it
// is binary-coercible to. Containers of incomparable elements have none.
const columnsQuery = `
WITH RECURSIVE operators AS (
	SELECT DISTINCT ON (oc.opcintype) oc.opcintype AS type, n.nspname, o.oprname
	FROM pg_catalog.pg_opclass oc
	JOIN pg_catalog.pg_am am ON am.oid = oc.opcmethod AND am.amname IN ('btree', 'hash')
	JOIN pg_catalog.pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amoppurpose = 's'
		AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype
		AND ao.amopstrategy = CASE am.amname WHEN 'btree' THEN 3 ELSE 1 END
	JOIN pg_catalog.pg_operator o ON o.oid = ao.amopopr
	JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
	WHERE oc.opcdefault
	ORDER BY oc.opcintype, am.amname
), columns AS (
	SELECT attnum, attname, atttypid, attgenerated, attidentity
	FROM pg_catalog.pg_attribute
	WHERE attrelid = ` + theTable + ` AND attnum > 0 AND NOT attisdropped
), base AS (
	SELECT attnum, atttypid AS type FROM columns
	UNION ALL
	SELECT b.attnum, t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype = 'd'
), parts AS (
	SELECT attnum, type FROM base
	UNION
	SELECT p.attnum, x.type
	FROM parts p JOIN pg_catalog.pg_type t ON t.oid = p.type
	CROSS JOIN LATERAL (
		SELECT t.typbasetype WHERE t.typtype = 'd'
		UNION ALL SELECT t.typelem WHERE t.typelem <> 0 AND t.typlen = -1
		UNION ALL SELECT m.atttypid FROM pg_catalog.pg_attribute m
			WHERE t.typtype = 'c' AND m.attrelid = t.typrelid AND m.attnum > 0 AND NOT m.attisdropped
	) x(type)
), incomparable AS (
	SELECT p.attnum FROM parts p JOIN pg_catalog.pg_type t ON t.oid = p.type
	WHERE t.typtype = 'b' AND NOT (t.typelem <> 0 AND t.typlen = -1)
		AND NOT EXISTS (SELECT FROM operators op WHERE op.type = t.oid)
		AND NOT EXISTS (SELECT FROM pg_catalog.pg_cast k JOIN operators op ON op.type = k.casttarget
			WHERE k.castsource = t.oid AND k.castmethod = 'b' AND k.castcontext = 'i')
)
SELECT c.attname, c.atttypid, c.attgenerated <> '', c.attidentity = 'a', e.nspname, e.oprname,
	t.oid, tn.nspname, t.typname,
	CASE WHEN t.typtype <> 'c' AND NOT (t.typelem <> 0 AND t.typlen = -1) THEN own.typarray ELSE 0 END, own.typdelim, own.typreceive <> 0,
	c.attnum IN (SELECT p.attnum FROM parts p JOIN pg_catalog.pg_type pt ON pt.oid = p.type
		WHERE pt.typnamespace = 'pg_catalog'::pg_catalog.regnamespace AND pt.typname ~ '^reg[a-z]+$' AND pt.typtype = 'b')
FROM columns c
JOIN pg_catalog.pg_type own ON own.oid = c.atttypid
JOIN base b ON b.attnum = c.attnum
JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype <> 'd'
JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
LEFT JOIN LATERAL (
	SELECT op.nspname, op.oprname
	FROM operators op JOIN pg_catalog.pg_type ot ON ot.oid = op.type
	WHERE op.type = t.oid
		OR op.type = CASE
			WHEN t.typtype = 'e' THEN 'pg_catalog.anyenum'::pg_catalog.regtype
			WHEN t.typtype = 'c' THEN 'pg_catalog.record'::pg_catalog.regtype
			WHEN t.typtype = 'r' THEN 'pg_catalog.anyrange'::pg_catalog.regtype
			WHEN t.typtype = 'm' THEN 'pg_catalog.anymultirange'::pg_catalog.regtype
			WHEN t.typelem <> 0 AND t.typlen = -1 THEN 'pg_catalog.anyarray'::pg_catalog.regtype END
		OR EXISTS (SELECT FROM pg_catalog.pg_cast k
			WHERE k.castsource = t.oid AND k.casttarget = op.type AND k.castmethod = 'b' AND k.castcontext = 'i')
	ORDER BY op.type = t.oid DESC, ot.typispreferred DESC, op.type
	LIMIT 1
) e ON c.attnum NOT IN (SELECT attnum FROM incomparable)
ORDER BY c.attnum`

func readColumns(rows [][][]byte) (map[string]localColumn, error) {
	columns := make(map[string]localColumn, len(rows))
	for _, row := range rows {
		oid, err := strconv.ParseUint(string(row[1]), 10, 32)
		if err != nil {
			return nil, err
		}
		base, err := strconv.ParseUint(string(row[6]), 10, 32)
		if err != nil {
			return nil, err
		}
		array, err := strconv.ParseUint(string(row[9]), 10, 32)
		if err != nil {
			return nil, err
		}
		columns[string(row[0])] = localColumn{
			Column: Column{
				Name:           string(row[0]),
				TypeOID:        uint32(oid),
				IdentityAlways: string(row[3]) == "t",
				Equality:       operator(row[4], row[5]),
				ArrayOID:       uint32(array),
				Delimiter:      row[10][0],
				NamesObjects:   string(row[12]) == "t",
			},
			generated:      string(row[2]) == "t",
			receives:       string(row[11]) == "t",
			baseType:       uint32(base),
			baseTypeSchema: string(row[7]),
			baseTypeName:   string(row[8]),
		}
	}
	return columns, nil
}

func operator(schema, name []byte) string {
	if name == nil {
		return ""
	}
	return "OPERATOR(" + pgx.Identifier{string(schema)}.Sanitize() + "." + string(name) + ")"
}

// mapColumns finds the target's column for each published one, by name.
func (t *Table) mapColumns(relation *decoder.Relation, columns map[string]localColumn, binary bool) error {
	var missing, generated []string
	t.Columns = make([]Column, len(relation.Columns))
	for i, remote := range relation.Columns {
		local, found := columns[remote.Name]
		switch {
		case !found:
			missing = append(missing, `"`+remote.Name+`"`)
		case local.generated:
			generated = append(generated, `"`+remote.Name+`"`)
		}
		t.Columns[i] = local.Column
		t.TextCopy = t.TextCopy || found && !local.receives
		t.Columns[i].NamesObjects = local.NamesObjects && local.sameType(remote)
		t.Columns[i].TakesBinary = local.sameType(remote) && !local.NamesObjects
		if binary && !t.Columns[i].TakesBinary && local.widens(remote.TypeOID) {
			t.Columns[i].TypeOID = remote.TypeOID
			t.Columns[i].TakesBinary, t.Columns[i].Widens = true, true
			t.Columns[i].ArrayOID = 0
		}
	}
	if len(missing) > 0 {
		return t.mismatch("add the column on the target, or take it out of the publication",
			`logical replication target relation "%s.%s" is missing replicated column%s: %s`,
			t.Schema, t.Name, plural(missing), strings.Join(missing, ", "))
	}
	if len(generated) > 0 {
		return t.mismatch("make the column an ordinary one on the target, or take it out of the publication",
			`logical replication target relation "%s.%s" has incompatible generated column%s: %s`,
			t.Schema, t.Name, plural(generated), strings.Join(generated, ", "))
	}
	return nil
}

// sameType compares a published column's type with the local one: built-in types
// by OID, which all servers share, others by the name that the publisher gave.
func (c *localColumn) sameType(remote decoder.Column) bool {
	if remote.TypeName == "" {
		return c.baseType == remote.TypeOID
	}
	return c.baseTypeSchema == remote.TypeNamespace && c.baseTypeName == remote.TypeName
}

// widens tells whether the server itself turns a value of the publisher's built-in
// type into the column's without losing anything. In text form no such thing is
// needed: there the column's own input function reads the value.
func (c *localColumn) widens(remote uint32) bool {
	const int2, int4, int8, text, varchar = 21, 23, 20, 25, 1043 // pg_type.dat
	if c.TypeOID != c.baseType {
		return false
	}
	switch remote {
	case int2:
		return c.baseType == int4 || c.baseType == int8
	case int4:
		return c.baseType == int8
	case text:
		return c.baseType == varchar
	case varchar:
		return c.baseType == text
	}
	return false
}

func plural(names []string) string {
	if len(names) == 1 {
		return ""
	}
	return "s"
}

type keyColumn struct {
	name, equality, collation string
	hashed                    bool
}

// keyQuery finds the columns of the index that rows are searched by: the replica
// identity index, else the primary key unless it is deferrable
// (GetRelationIdentityOrPK in relation.c). The operator is that of the index's
// own operator class; it is empty for an access method other than btree.
const keyQuery = `
		SELECT a.attname, n.nspname, o.oprname, i.indexrelid, i.version,
			(SELECT pg_catalog.quote_ident(cn.nspname) || '.' || pg_catalog.quote_ident(co.collname)
			 FROM pg_catalog.pg_collation co JOIN pg_catalog.pg_namespace cn ON cn.oid = co.collnamespace
			 WHERE co.oid = k.coll AND k.coll <> a.attcollation),
			-- Whether a range or what consists of others has hashes depends on these.
			o.oprcanhash AND oc.opcintype NOT IN ('pg_catalog.anyrange'::pg_catalog.regtype, 'pg_catalog.record'::pg_catalog.regtype,
				'pg_catalog.anyarray'::pg_catalog.regtype, coalesce(pg_catalog.to_regtype('pg_catalog.anymultirange'), 0))
			AND EXISTS (SELECT FROM pg_catalog.pg_amop h JOIN pg_catalog.pg_am hm ON hm.oid = h.amopmethod WHERE h.amopopr = o.oid AND hm.amname = 'hash')
		FROM (
			SELECT i.*, i.xmin AS version FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indrelid
			WHERE i.indrelid = ` + theTable + ` AND i.indislive AND i.indisvalid AND i.indimmediate
				AND (i.indisprimary OR i.indisreplident AND c.relreplident = 'i')
			ORDER BY i.indisreplident AND c.relreplident = 'i' DESC
			LIMIT 1
		) i
		CROSS JOIN LATERAL ROWS FROM (
			pg_catalog.unnest(i.indkey::pg_catalog.int2[]), pg_catalog.unnest(i.indclass::pg_catalog.oid[]),
			pg_catalog.unnest(i.indcollation::pg_catalog.oid[])
		) WITH ORDINALITY k(attnum, opclass, coll, position)
		JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
		JOIN pg_catalog.pg_opclass oc ON oc.oid = k.opclass
		JOIN pg_catalog.pg_am am ON am.oid = oc.opcmethod
		LEFT JOIN pg_catalog.pg_amop ao ON ao.amopfamily = oc.opcfamily AND ao.amoppurpose = 's' AND am.amname = 'btree'
			AND ao.amoplefttype = oc.opcintype AND ao.amoprighttype = oc.opcintype AND ao.amopstrategy = 3
		LEFT JOIN pg_catalog.pg_operator o ON o.oid = ao.amopopr
		LEFT JOIN pg_catalog.pg_namespace n ON n.oid = o.oprnamespace
		WHERE k.position <= i.indnkeyatts
		ORDER BY k.position`

func (t *Table) readKey(rows [][][]byte) []keyColumn {
	key := make([]keyColumn, len(rows))
	for i, row := range rows {
		key[i] = keyColumn{name: string(row[0]), equality: operator(row[1], row[2]), collation: string(row[5]), hashed: string(row[6]) == "t"}
		t.Version.Index, t.Version.IndexXID = string(row[3]), string(row[4])
	}
	return key
}

// chooseSearch decides how rows are found (FindReplTupleInLocalRel and
// check_relation_updatable in worker.c). A key whose columns the publisher does
// not send is a fault of UPDATE and DELETE only.
func (t *Table) chooseSearch(relation *decoder.Relation, key []keyColumn) {
	full := relation.ReplicaIdentity == decoder.IdentityFull
	if len(key) == 0 {
		if full {
			t.Search = ByRow
			return
		}
		t.Search = Impossible
		t.searchFault = t.mismatch("give the table a primary key or a replica identity index on the target, or publish it with REPLICA IDENTITY FULL",
			`logical replication target relation "%s.%s" has neither REPLICA IDENTITY index nor PRIMARY KEY and published relation does not have REPLICA IDENTITY FULL`,
			t.Schema, t.Name)
		return
	}
	for _, column := range key {
		position := t.position(column.name)
		if position < 0 || !relation.Columns[position].Key && !full {
			t.Search = Impossible
			t.searchFault = t.mismatch("publish the table with a replica identity that has all columns of the target's key",
				`publisher did not send replica identity column expected by the logical replication target relation "%s.%s": "%s"`,
				t.Schema, t.Name, column.name)
			return
		}
		if column.equality != "" {
			t.Columns[position].Equality = column.equality
		}
		t.Columns[position].Key, t.Columns[position].Hashed = true, column.hashed
		t.Columns[position].Collation = column.collation
	}
	t.Search = ByKey
}

func (t *Table) position(name string) int {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return i
		}
	}
	return -1
}

// AsMismatch returns the MismatchError in err's chain, if there is one.
func AsMismatch(err error) (*MismatchError, bool) { return errors.AsType[*MismatchError](err) }

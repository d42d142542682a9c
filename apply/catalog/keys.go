package catalog

import (
	"fmt"
	"slices"
	"strconv"

	"pgapply/decoder"
)

// Keys says by what rows of a table can meet: two changes that concern one row, or two
// rows of which a unique index allows but one, have an equal value in one of the sets.
//
// Unique indexes on expressions, on some of the rows, or on columns that are not
// published have no set: their values are not known here. See [ReadKeys] for what that
// costs.
type Keys struct {
	Sets []KeySet
	// Searched tells that one of the sets is that by which rows are searched. Else only
	// inserts can tell their keys.
	Searched bool
	// Barrier says, for people, why nothing on the table can tell its keys; empty where it
	// can.
	Barrier string
}

// KeySet is a unique index.
type KeySet struct {
	OID     uint32
	Columns []KeyColumn
	// NullsEqual: a NULL is a value like others (NULLS NOT DISTINCT). Else a row with one
	// has no key.
	NullsEqual bool
}

// KeyColumn is a column of a unique index.
type KeyColumn struct {
	// Position among the published columns.
	Position int
	Form     KeyForm
}

// KeyForm says when two values of a column, as one publisher sends them, may be equal
// on the target: if they have the same bytes after what it names was taken from them.
type KeyForm uint8

// The forms. Within one form, text and binary values must not be mixed.
const (
	NoForm      KeyForm = iota // it is not known
	Bytes                      // nothing is to be taken
	Padded                     // spaces at the end: of no meaning in bpchar, and of varchar(n) what is too long
	FloatForm                  // the sign of zero
	NumericForm                // zeros at the end of the fraction
)

// keysQuery reads the columns of the unique indexes, with their types below all domains
// and the modifiers that hold for them.
const keysQuery = `
WITH RECURSIVE base(attnum, attname, type, modifier) AS (
	SELECT attnum, attname, atttypid, atttypmod FROM pg_catalog.pg_attribute
	WHERE attrelid = ` + theTable + ` AND attnum > 0 AND NOT attisdropped
	UNION ALL
	SELECT b.attnum, b.attname, t.typbasetype, CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE b.modifier END
	FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype = 'd'
)
SELECT i.indexrelid, coalesce((pg_catalog.to_jsonb(i.*) ->> 'indnullsnotdistinct')::pg_catalog.bool, false),
	b.attname, t.oid, t.typtype, n.nspname, t.typname, b.modifier,
	am.amname = 'btree' AND oc.opcnamespace = 'pg_catalog'::pg_catalog.regnamespace,
	coalesce((SELECT co.collisdeterministic FROM pg_catalog.pg_collation co WHERE co.oid = k.coll), true)
FROM pg_catalog.pg_index i
CROSS JOIN LATERAL ROWS FROM (
	pg_catalog.unnest(i.indkey::pg_catalog.int2[]), pg_catalog.unnest(i.indclass::pg_catalog.oid[]),
	pg_catalog.unnest(i.indcollation::pg_catalog.oid[])
) WITH ORDINALITY k(attnum, opclass, coll, position)
JOIN base b ON b.attnum = k.attnum
JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype <> 'd'
JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace
JOIN pg_catalog.pg_opclass oc ON oc.oid = k.opclass
JOIN pg_catalog.pg_am am ON am.oid = oc.opcmethod
WHERE i.indrelid = ` + theTable + ` AND i.indisunique AND i.indislive AND i.indisvalid
	AND i.indpred IS NULL AND 0 <> ALL ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1]) AND k.position <= i.indnkeyatts
ORDER BY i.indexrelid, k.position`

// ReadKeys tells how changes of the table, which is bound to the relation, meet.
//
// It is as exact as it has to be. Of two changes that meet, applied by two sessions at a
// time, one waits for the other's row lock or index entry, or finds another number of rows
// than it should, or is refused: that is noticed, whatever the keys say, so a set that is
// missing costs time alone. Two things are not noticed, and must not be missing: which of
// several equal rows a change without a key takes, and that a key is not there any more
// which has come and gone within a group. So without a set by which rows are searched
// only inserts may be applied beside others; and where equality of one of the columns is
// not known, nothing may.
func ReadKeys(table *Table, relation *decoder.Relation) (*Keys, error) {
	if table.RowByRow != "" {
		return &Keys{Barrier: table.RowByRow}, nil
	}
	rows := table.unique
	keys := &Keys{}
	for len(rows) > 0 {
		index := rows[0][0]
		n := 1
		for n < len(rows) && string(rows[n][0]) == string(index) {
			n++
		}
		if err := keys.add(table, relation, rows[:n]); err != nil {
			return nil, fmt.Errorf("read the unique indexes of %s: %w", table.QualifiedName(), err)
		}
		rows = rows[n:]
	}
	if keys.Barrier != "" {
		return &Keys{Barrier: keys.Barrier}, nil
	}
	return keys, nil
}

// add adds the index with these columns, unless one of them is not published.
func (k *Keys) add(table *Table, relation *decoder.Relation, columns [][][]byte) error {
	oid, err := strconv.ParseUint(string(columns[0][0]), 10, 32)
	if err != nil {
		return err
	}
	set := KeySet{OID: uint32(oid), NullsEqual: string(columns[0][1]) == "t"}
	unknown := ""
	for _, row := range columns {
		position := table.position(string(row[2]))
		if position < 0 {
			return nil
		}
		column := KeyColumn{Position: position}
		base, err := strconv.ParseUint(string(row[3]), 10, 32)
		if err != nil {
			return err
		}
		modifier, err := strconv.ParseInt(string(row[7]), 10, 32)
		if err != nil {
			return err
		}
		if string(row[8]) == "t" && string(row[9]) == "t" {
			local := localColumn{baseType: uint32(base), baseTypeSchema: string(row[5]), baseTypeName: string(row[6])}
			column.Form = local.form(relation.Columns[position], string(row[4]), int32(modifier))
		}
		if column.Form == NoForm {
			unknown = table.Columns[position].Name
		}
		set.Columns = append(set.Columns, column)
	}
	if unknown != "" {
		k.Barrier = fmt.Sprintf("key column %q: when its values are equal is known to the target alone", unknown)
		return nil
	}
	k.Sets = append(k.Sets, set)
	if table.Search == ByKey && string(columns[0][0]) == table.Version.Index {
		k.Searched = true
	}
	return nil
}

// OIDs of built-in types (pg_type.dat).
const (
	boolType, byteaType, int8Type, int2Type, int4Type, textType, oidType = 16, 17, 20, 21, 23, 25, 26
	float4Type, float8Type, bpcharType, varcharType                      = 700, 701, 1042, 1043
	dateType, timeType, timestampType, timestamptzType                   = 1082, 1083, 1114, 1184
	bitType, varbitType, numericType, uuidType                           = 1560, 1562, 1700, 2950
)

// form is that of the column's values as they arrive from the remote column. The kind is
// the base type's pg_type.typtype, and modifier what cuts values on their way in.
//
// Equal must have equal bytes once the column's type has read them, which is why the
// publisher's type counts: it has to write each value in one way only, and the column
// must not make one of two that differ.
func (c *localColumn) form(remote decoder.Column, kind string, modifier int32) KeyForm {
	integers, strings := []uint32{int2Type, int4Type, int8Type}, []uint32{textType, varcharType, bpcharType}
	switch {
	case slices.Contains(integers, c.baseType) && slices.Contains(integers, remote.TypeOID):
		return Bytes
	case slices.Contains(strings, c.baseType) && (c.sameType(remote) || slices.Contains(strings, remote.TypeOID)):
		return Padded
	case !c.sameType(remote):
		return NoForm
	case kind == "e":
		return Bytes
	}
	switch c.baseType {
	case boolType, byteaType, int2Type, int4Type, int8Type, oidType, dateType, bitType, varbitType, uuidType:
		return Bytes
	case timeType, timestampType, timestamptzType:
		if modifier < 0 || modifier == remote.TypeModifier {
			return Bytes
		}
	case float4Type, float8Type:
		return FloatForm
	case numericType:
		if modifier < 0 || modifier == remote.TypeModifier {
			return NumericForm
		}
	}
	return NoForm // others are equal in more ways, or may be
}

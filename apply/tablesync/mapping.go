package tablesync

import (
	"fmt"
	"strconv"
	"strings"

	"pgapply/internal/source"
	"pgapply/origin"
)

// local is a table of the target.
type local struct {
	kind       string
	oid        uint32
	referenced bool // by another table's foreign key, which forbids TRUNCATE
	columns    map[string]localColumn
}

type localColumn struct {
	typeOID   uint32
	generated bool
}

// MismatchError says why a published table cannot be copied into the target's of that
// name. The texts are those of the native subscription.
type MismatchError struct {
	Table  Table
	Reason string
	// Missing says that the target has no relation of that name at all.
	Missing bool
}

func (e *MismatchError) Error() string { return e.Reason }

// locals reads what the target has under the names of the tables.
func locals(session origin.Session, tables []Table) (map[Table]*local, error) {
	schemas, names := make([]string, len(tables)), make([]string, len(tables))
	for i, table := range tables {
		schemas[i], names[i] = table.Schema, table.Name
	}
	rows, err := session.Query(`
		SELECT n.nspname, c.relname, c.oid, c.relkind, a.attname, a.atttypid, a.attgenerated <> '',
			EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.contype = 'f' AND k.confrelid = c.oid AND k.conrelid <> c.oid)
		FROM ROWS FROM (pg_catalog.unnest($1::pg_catalog.text[]), pg_catalog.unnest($2::pg_catalog.text[])) AS w (schema, name)
		JOIN pg_catalog.pg_namespace n ON n.nspname = w.schema
		JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
		LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped`,
		array(schemas), array(names))
	if err != nil {
		return nil, fmt.Errorf("read the target's tables: %w", err)
	}
	found := make(map[Table]*local, len(tables))
	for _, row := range rows {
		name := Table{Schema: string(row[0]), Name: string(row[1])}
		if found[name] == nil {
			oid, err := strconv.ParseUint(string(row[2]), 10, 32)
			if err != nil {
				return nil, fmt.Errorf("read the target's tables: %w", err)
			}
			found[name] = &local{
				oid: uint32(oid), kind: string(row[3]), referenced: string(row[7]) == "t", columns: make(map[string]localColumn),
			}
		}
		if row[4] == nil {
			continue
		}
		kind, err := strconv.ParseUint(string(row[5]), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("read the target's tables: %w", err)
		}
		found[name].columns[string(row[4])] = localColumn{typeOID: uint32(kind), generated: string(row[6]) == "t"}
	}
	return found, nil
}

// array writes names as the text form of an array of text.
func array(names []string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = `"` + escape.Replace(name) + `"`
	}
	return "{" + strings.Join(quoted, ",") + "}"
}

// fit proves that every published column has a column of the target to go to.
func fit(table Table, published *source.CopyTable, l *local) error {
	refuse := func(format string, arguments ...any) error {
		return &MismatchError{Table: table, Reason: fmt.Sprintf(format, arguments...), Missing: l == nil}
	}
	if l == nil {
		return refuse(`logical replication target relation "%s.%s" does not exist`, table.Schema, table.Name)
	}
	if l.kind != "r" && l.kind != "p" {
		return refuse(`cannot use relation "%s.%s" as logical replication target: it is not a table`, table.Schema, table.Name)
	}
	var missing, generated []string
	for _, column := range published.Columns {
		switch local, found := l.columns[column.Name]; {
		case !found:
			missing = append(missing, `"`+column.Name+`"`)
		case local.generated:
			generated = append(generated, `"`+column.Name+`"`)
		}
	}
	plural := func(names []string) string {
		if len(names) == 1 {
			return ""
		}
		return "s"
	}
	switch {
	case len(missing) > 0:
		return refuse(`logical replication target relation "%s.%s" is missing replicated column%s: %s`,
			table.Schema, table.Name, plural(missing), strings.Join(missing, ", "))
	case len(generated) > 0:
		return refuse(`logical replication target relation "%s.%s" has incompatible generated column%s: %s`,
			table.Schema, table.Name, plural(generated), strings.Join(generated, ", "))
	}
	return nil
}

// sameBinary tells whether every column has one and the same built-in type on both ends,
// the binary form of which is the same in all majors from 10 on.
func sameBinary(published *source.CopyTable, l *local) bool {
	for _, column := range published.Columns {
		if column.TypeOID != l.columns[column.Name].typeOID || !stableBinary(column.TypeOID) {
			return false
		}
	}
	return len(published.Columns) > 0
}

// stableBinary lists types and their arrays by the OIDs of pg_type.dat. Types whose values
// name objects of one server, or whose form has a version of its own, are not among them.
func stableBinary(oid uint32) bool {
	switch oid {
	case 16, 17, 18, 19, 20, 21, 23, 25, 700, 701, // bool bytea char name int8 int2 int4 text float4 float8
		600, 601, 602, 603, 604, 628, 718, // geometric types
		650, 869, 829, 774, // cidr inet macaddr macaddr8
		790, 1042, 1043, 1082, 1083, 1114, 1184, 1186, 1266, // money bpchar varchar and those of time
		1560, 1562, 1700, 2950, 114, 3802, // bit varbit numeric uuid json jsonb
		3904, 3906, 3908, 3910, 3912, 3926: // ranges
		return true
	case 1000, 1001, 1002, 1003, 1016, 1005, 1007, 1009, 1021, 1022,
		1041, 651, 1040, 775,
		1014, 1015, 1182, 1183, 1115, 1185, 1187, 1270,
		1561, 1563, 1231, 2951, 199, 3807:
		return true
	}
	return false
}

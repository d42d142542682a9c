package verify

import (
	"fmt"
	"strings"
)

// dialect is how both ends write and hash values, which depends on the older one.
type dialect struct {
	// hash is SQL in which %[1]s is a text and %[2]d a number that makes it another hash
	// of the same text.
	hash string
	// exactFloats: both ends write floating-point numbers in the shortest exact form.
	exactFloats bool
}

const (
	// hashExtended is the server's own hash of a text's bytes, from 11 on. It is the same
	// on all machines of one byte order, which sameHashes proves.
	hashExtended = `pg_catalog.hashtextextended((%[1]s) COLLATE pg_catalog."C", %[2]d)`
	// hashConverted is that of a text in UTF-8, for databases of different encodings.
	hashConverted = `pg_catalog.hashtextextended(pg_catalog.encode(pg_catalog.convert_to(%[1]s, 'UTF8'), 'hex') COLLATE pg_catalog."C", %[2]d)`
	// hashPortable is slower, and serves everywhere.
	hashPortable = `('x' || pg_catalog.substr(pg_catalog.md5(pg_catalog.convert_to('%[2]d:' || (%[1]s), 'UTF8')), 1, 16))::pg_catalog.bit(64)::pg_catalog.int8`
)

// probe gives hashes of texts of all lengths that the hash function treats differently.
const probe = `SELECT pg_catalog.string_agg(pg_catalog.hashtextextended(pg_catalog.repeat('pgapply', n) COLLATE pg_catalog."C", n)::pg_catalog.text, ' ' ORDER BY n)
	FROM pg_catalog.generate_series(0, 12) n`

// chooseHash takes the fastest form that gives the same on both ends.
func chooseHash(source, target *session, sameHashes bool) string {
	raw := source.encoding == target.encoding || source.encoding == "SQL_ASCII" || target.encoding == "SQL_ASCII"
	switch {
	case sameHashes && raw:
		return hashExtended
	case sameHashes:
		return hashConverted
	}
	return hashPortable
}

// The types whose text is not the same in all majors.
const (
	charOID   = 18  // "char": from 16 on bytes above 127 come as octal numbers
	float4OID = 700 // before 12 with more digits than it takes
	float8OID = 701
	// firstUserOID is above the types that every server has.
	firstUserOID = 16384
)

// column is a published column on both ends.
type column struct {
	name           string
	source, target valueType
}

// valueType is the type of a column, below its domains.
type valueType struct {
	oid uint32
	// text is its name with length and precision.
	text string
}

// output is SQL for what the output function of any type gives, NULL for NULL. A cast to
// text would be another thing for character(n), inet and boolean.
func output(name string) string {
	return fmt.Sprintf(`CASE WHEN %[1]s IS NOT NULL THEN pg_catalog.concat(%[1]s) END`, name)
}

// canonical is SQL for the text of a column that both ends give for one value.
func (d *dialect) canonical(c *column, onSource bool) string {
	name := identifier(c.name)
	same, builtIn := c.source == c.target, c.target.oid < firstUserOID
	switch {
	case same && c.source.oid == charOID:
		return name + `::pg_catalog.int4::pg_catalog.text`
	case same && !d.exactFloats && c.source.oid == float4OID:
		return `pg_catalog.encode(pg_catalog.float4send(` + name + `), 'hex')`
	case same && !d.exactFloats && c.source.oid == float8OID:
		return `pg_catalog.encode(pg_catalog.float8send(` + name + `), 'hex')`
	case !same && !builtIn: // types of the same name have other OIDs there
		return output(name)
	case !same && onSource:
		// As the target's column reads it: jsonb puts keys in order, numeric(9,2) rounds.
		return `(` + output(name) + `)::` + c.target.text + `::pg_catalog.text`
	}
	return name + `::pg_catalog.text`
}

// hashOf is SQL for the hash of a column; the place among the columns is part of it.
func (d *dialect) hashOf(c *column, place int, onSource bool) string {
	return fmt.Sprintf(`coalesce(`+d.hash+`, %[2]d)`, d.canonical(c, onSource), place+1)
}

// hashOfAll is SQL for the hash of several columns, each with its place.
func (d *dialect) hashOfAll(columns []column, places []int, onSource bool) string {
	parts := make([]string, len(places))
	for i, place := range places {
		parts[i] = d.hashOf(&columns[place], place, onSource)
	}
	return strings.Join(parts, ` # `)
}

func identifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func literal(text string) string { return `'` + strings.ReplaceAll(text, `'`, `''`) + `'` }

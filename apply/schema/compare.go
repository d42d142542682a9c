package schema

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"pgapply/apply/catalog"
	"pgapply/decoder"
	"pgapply/internal/source"
)

// Comparison is a published table beside the target's of its name.
type Comparison struct {
	source.Published
	// Bound is nil where the two do not fit, and Mismatch says why.
	Bound    *catalog.Table
	Mismatch *catalog.MismatchError
}

// Compare looks for each published table on the target, as the stream will when its
// first change arrives. It changes nothing. The result is in the order of published.
func Compare(ctx context.Context, target *pgx.Conn, published []source.Published) ([]Comparison, error) {
	q := querier{ctx, target}
	list := make([]Comparison, len(published))
	for i := range published {
		c := &list[i]
		c.Published = published[i]
		bound, err := catalog.Load(q, relation(&c.Published), false)
		if err == nil {
			c.Bound = bound
			continue
		}
		var fits bool
		if c.Mismatch, fits = catalog.AsMismatch(err); !fits {
			return nil, err
		}
	}
	return list, nil
}

// querier is a catalog.QuerierOfAll over a control session, for one call of Compare.
type querier struct {
	ctx  context.Context
	conn *pgx.Conn
}

// QueryAll implements catalog.QuerierOfAll.
func (q querier) QueryAll(sql []string, parameters ...string) ([][][][]byte, error) {
	values := make([][]byte, len(parameters))
	for i, parameter := range parameters {
		values[i] = []byte(parameter)
	}
	var batch pgconn.Batch
	for _, query := range sql {
		batch.ExecParams(query, values, nil, nil, nil)
	}
	results, err := q.conn.PgConn().ExecBatch(q.ctx, &batch).ReadAll()
	if err != nil {
		return nil, err
	}
	answers := make([][][][]byte, len(results))
	for i, result := range results {
		answers[i] = result.Rows
	}
	return answers, nil
}

// relation is what the publisher's stream will say of the table, without types.
func relation(published *source.Published) *decoder.Relation {
	r := &decoder.Relation{
		Namespace: published.Schema, Name: published.Name, ReplicaIdentity: decoder.ReplicaIdentity(published.Identity),
		Columns: make([]decoder.Column, len(published.Columns)),
	}
	for i, column := range published.Columns {
		r.Columns[i] = decoder.Column{Name: column.Name, Key: column.Key}
	}
	return r
}

// MisfitError lists every published table that the target's does not fit: missing
// tables, missing columns, and columns that cannot be written.
type MisfitError struct{ Misfits []*catalog.MismatchError }

func (e *MisfitError) Error() string {
	if len(e.Misfits) == 1 {
		return e.Misfits[0].Reason
	}
	reasons := make([]string, len(e.Misfits))
	for i, misfit := range e.Misfits {
		reasons[i] = misfit.Reason
	}
	return fmt.Sprintf("%d published tables do not fit the target: %s", len(e.Misfits), strings.Join(reasons, "; "))
}

// Hint is the remedy for all of them.
func (e *MisfitError) Hint() string {
	missing := 0
	for _, misfit := range e.Misfits {
		if misfit.Missing {
			missing++
		}
	}
	switch missing {
	case len(e.Misfits):
		return "create them on the target, or let --copy-schema do so"
	case 0:
		return "change them on the target; `pgapply check` names the remedy for each"
	}
	return "create or change them on the target; --copy-schema creates those that are missing, and `pgapply check` names the remedy for each"
}

// Misfits is the *MisfitError of a comparison, or nil. skipMissing says that tables
// which the target lacks are to be left out.
func Misfits(comparison []Comparison, skipMissing bool) error {
	var e MisfitError
	for i := range comparison {
		misfit := comparison[i].Mismatch
		if misfit == nil || comparison[i].Schema == "pgapply" || misfit.Missing && skipMissing {
			continue
		}
		e.Misfits = append(e.Misfits, misfit)
	}
	if len(e.Misfits) == 0 {
		return nil
	}
	return &e
}

package operate

import (
	"context"

	"github.com/jackc/pgx/v5"

	"pgapply/apply"
	"pgapply/apply/tablesync"
	"pgapply/internal/source"
)

// facts are what the questions of a check look at, read once from both ends.
type facts struct {
	options apply.Options
	// target and publisher are nil for an end that could not be asked, and the error
	// beside it says why.
	target       *targetFacts
	targetErr    error
	publisher    *publisherFacts
	publisherErr error
	// tables are the published ones, where both ends could be asked.
	tables []tableFacts
	// filled are those that are to be copied and have rows on the target; filledErr is why
	// the role may not see whether they have.
	filled    []tablesync.Filled
	filledErr error
}

// ends are both servers, for the questions that a start asks too.
func (f *facts) ends() *apply.Ends {
	ends := &apply.Ends{Options: &f.options}
	if f.target != nil {
		ends.Target = f.target.server
	}
	if f.publisher != nil {
		ends.Publisher, ends.PublisherVersion = f.publisher.identity, f.publisher.version
	}
	return ends
}

func gather(ctx context.Context, options apply.Options) (*facts, error) {
	f := &facts{options: options}
	if err := validate(options); err != nil {
		return nil, err
	}
	ends := Endpoints{
		Name: options.Name, Source: options.Source, Target: options.Target,
		SourcePassfile: options.SourcePassfile, TargetPassfile: options.TargetPassfile,
	}
	var session *targetSession
	if session, f.targetErr = ends.openTarget(ctx); f.targetErr == nil {
		defer closeTarget(session.conn)
		if session.server.Pooled { // what else it says may be another session's
			f.targetErr = (&apply.Ends{Options: &f.options, Target: session.server}).CheckTarget()
		}
	}
	if f.targetErr == nil {
		var err error
		if f.target, err = gatherTarget(ctx, session, options); err != nil {
			return nil, apply.TargetError(err)
		}
		if subscription := f.target.subscription; len(f.options.Publications) == 0 && subscription != nil {
			f.options.Publications = subscription.Publications
		}
	}
	if err := f.options.Validate(); err != nil {
		return nil, err // no publication was given, and none is recorded
	}
	conn, identity, err := ends.openSource(ctx)
	if err != nil {
		f.publisherErr = err
		return f, nil
	}
	defer closeSource(conn)
	if f.publisher, err = gatherPublisher(ctx, conn, identity, f); source.ClassOf(err) == source.Configuration {
		f.publisher, f.publisherErr = nil, apply.SourceError(err) // as a start would say
		return f, nil
	}
	if err != nil {
		return nil, apply.SourceError(err)
	}
	if f.target != nil {
		if f.tables, err = gatherTables(ctx, session.conn, session.server.Role, options.CopyData, f.publisher.published); err != nil {
			return nil, apply.TargetError(err)
		}
		if err = f.gatherCreating(ctx, session.conn); err != nil {
			return nil, apply.TargetError(err)
		}
		if err = f.gatherFiring(ctx, session.conn); err != nil {
			return nil, apply.TargetError(err)
		}
		if err = f.gatherLocalColumns(ctx, session.conn); err != nil {
			return nil, apply.TargetError(err)
		}
		if err = f.gatherFilled(ctx, session); err != nil {
			return nil, apply.TargetError(err)
		}
	}
	return f, ctx.Err()
}

// validate looks at the options before anything is opened with them.
func validate(options apply.Options) error {
	if len(options.Publications) == 0 {
		options.Publications = []string{"recorded"}
	}
	return options.Validate()
}

// checkReachable says which end could not be asked. What hangs on it is not checked.
func checkReachable(f *facts) []Finding {
	var findings []Finding
	if f.publisherErr != nil {
		findings = append(findings, failed("publisher", f.publisherErr)...)
	}
	if f.targetErr != nil {
		findings = append(findings, failed("target", f.targetErr)...)
	}
	return findings
}

// queryFunc is a catalog.Querier over a control session.
type queryFunc func(sql string, parameters ...string) ([][][]byte, error)

// Query implements catalog.Querier.
func (q queryFunc) Query(sql string, parameters ...string) ([][][]byte, error) {
	return q(sql, parameters...)
}

func querier(ctx context.Context, conn *pgx.Conn) queryFunc {
	return func(sql string, parameters ...string) ([][][]byte, error) {
		values := make([][]byte, len(parameters))
		for i, parameter := range parameters {
			values[i] = []byte(parameter)
		}
		result := conn.PgConn().ExecParams(ctx, sql, values, nil, nil, nil).Read()
		return result.Rows, result.Err
	}
}

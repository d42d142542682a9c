package oracle

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// compareConflicts compares what the ends noted of rows that were missing, or that
// somebody else wrote, where that does not depend on when a change was applied.
func (p *play) compareConflicts(ctx context.Context) error {
	if p.script.copies {
		return nil // a change may come with the copied row, or by itself
	}
	keyed, err := p.keyed(ctx)
	if err != nil {
		return err
	}
	var first *end
	var want string
	for _, e := range p.ends {
		noted := p.notedByNative
		if !e.native() {
			noted = p.notedByEngine
		}
		counts, known, err := noted(ctx, e)
		if err != nil {
			return err
		}
		if !known {
			continue
		}
		have := conflictText(counts, keyed, !p.script.raced && !p.script.frozen)
		switch {
		case first == nil:
			first, want = e, have
		case have != want:
			p.fail(e.name+" notes other conflicts than "+first.name, "%s notes\n%s%s notes\n%s", first.name, want, e.name, have)
			return nil
		}
	}
	return nil
}

// noted is a type of conflict on a table, or on a partition of it.
type noted struct{ table, conflict string }

// conflictText lists conflicts on tables where a key finds the rows. Of rows that are
// all alike nobody can say which one a change has met; nor can they who wrote a row,
// unless writers is set, since it was written by hand at some time.
func conflictText(counts map[noted]int, keyed map[string]string, writers bool) string {
	lines := map[string]int{}
	for what, count := range counts {
		if !writers && strings.HasSuffix(what.conflict, "_origin_differs") {
			continue
		}
		if table, ok := keyed[what.table]; ok {
			lines[what.conflict+" on "+table] += count
		}
	}
	var text strings.Builder
	for _, line := range slices.Sorted(maps.Keys(lines)) {
		fmt.Fprintf(&text, "%6d %s\n", lines[line], line)
	}
	return text.String()
}

// keyed are the targets' tables and partitions with a key, and the tables that they
// belong to.
func (p *play) keyed(ctx context.Context) (map[string]string, error) {
	rows, err := p.ends[0].setup.query(ctx, `SELECT n.nspname || '.' || c.relname, rn.nspname || '.' || r.relname
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		JOIN pg_class r ON r.oid = coalesce(pg_partition_root(c.oid), c.oid) JOIN pg_namespace rn ON rn.oid = r.relnamespace
		WHERE EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisprimary OR i.indisreplident))`)
	tables := make(map[string]string, len(rows))
	for _, row := range rows {
		tables[row[0]] = row[1]
	}
	return tables, err
}

// notedByEngine asks for what an engine has noted.
func (p *play) notedByEngine(ctx context.Context, e *end) (counts map[noted]int, known bool, err error) {
	rows, err := e.setup.query(ctx, `SELECT schemaname || '.' || relname, conflict_type, count(*) FROM pgapply.conflict GROUP BY 1, 2`)
	if err != nil {
		return nil, false, err
	}
	counts = make(map[noted]int, len(rows))
	for _, row := range rows {
		count, err := strconv.Atoi(row[2])
		if err != nil {
			return nil, false, err
		}
		counts[noted{row[0], row[1]}] = count
		p.result.Conflicts += count
	}
	return counts, true, nil
}

var (
	conflictLogged = regexp.MustCompile(`LOG: +conflict detected on relation "(.*)": conflict=(\w+)`)
	// workerFailed is an error of a process that serves no client.
	workerFailed = regexp.MustCompile(`(?m)^[^\[\n]*\[\d+\] ERROR:`)
)

// notedByNative reads the log. It says nothing before 18. What has been tried twice is
// logged twice, and what has been streamed or prepared is logged although it is rolled
// back in the end when it is applied as it comes.
func (p *play) notedByNative(context.Context, *end) (counts map[noted]int, known bool, err error) {
	prepared := strings.Contains(p.script.native, nativePrepares) && p.script.Features[preparedRolledBack] > 0
	if p.servers.Target < 18 || prepared || strings.Contains(p.script.native, "parallel") {
		return nil, false, nil
	}
	log, err := p.target.Log(p.logged)
	if err != nil || workerFailed.MatchString(log) {
		return nil, false, err
	}
	counts = map[noted]int{}
	for _, match := range conflictLogged.FindAllStringSubmatch(log, -1) {
		counts[noted{match[1], match[2]}]++
	}
	p.result.NativeConflicts = true
	return counts, true, nil
}

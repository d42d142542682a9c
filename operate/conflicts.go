package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/conflict"
	"pgapply/internal/plain"
)

// ConflictView is a recorded conflict. The JSON names are stable, and those that
// PostgreSQL's own conflict log table has are its names.
type ConflictView struct {
	ID     int64               `json:"id"`
	At     time.Time           `json:"at"`
	Schema string              `json:"schemaname"`
	Table  string              `json:"relname"`
	Type   conflict.Type       `json:"conflict_type"`
	Policy conflict.Policy     `json:"policy,omitempty"`
	Result conflict.Resolution `json:"resolution"`
	// Operation is empty where the type says it.
	Operation string `json:"operation,omitempty"`

	RemoteXID    uint32         `json:"remote_xid"`
	RemoteCommit state.Position `json:"remote_commit_lsn"`
	RemoteTime   *time.Time     `json:"remote_commit_ts,omitempty"`
	RemoteOrigin string         `json:"remote_origin,omitempty"`

	// Values only where one conflict was asked for.
	ReplicaIdentity json.RawMessage  `json:"replica_identity,omitempty"`
	RemoteTuple     json.RawMessage  `json:"remote_tuple,omitempty"`
	Local           []conflict.Local `json:"local_conflicts,omitempty"`
}

func newConflictView(recorded *state.RecordedConflict) ConflictView {
	view := ConflictView{
		ID: recorded.ID, At: recorded.At.UTC(), Schema: recorded.Schema, Table: recorded.Table, Type: recorded.Type,
		Policy: recorded.Policy, Result: recorded.Resolution, Operation: recorded.Operation,
		RemoteXID: recorded.RemoteXID, RemoteCommit: state.Position(recorded.FinishLSN), RemoteOrigin: recorded.RemoteOrigin,
		ReplicaIdentity: recorded.ReplicaIdentity, RemoteTuple: recorded.RemoteTuple, Local: recorded.Local,
	}
	if !recorded.RemoteTime.IsZero() {
		at := recorded.RemoteTime.UTC()
		view.RemoteTime = &at
	}
	return view
}

// ConflictList is what ListConflicts found.
type ConflictList struct {
	// Conflicts are without values, newest first.
	Conflicts []ConflictView `json:"conflicts"`
	// More says that the limit left older ones out.
	More bool `json:"more"`

	// picked says that a filter left some out, or could have.
	picked bool
}

// ListConflicts lists what is recorded on the target, newest first.
func ListConflicts(ctx context.Context, ends Endpoints, filter state.ConflictFilter) (*ConflictList, error) {
	target, store, err := ends.openState(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	limit := filter.Limit
	if limit > 0 {
		filter.Limit++ // to see whether there are more
	}
	found, err := store.Conflicts(ctx, filter)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	if len(found) == 0 {
		if err := known(ctx, target, store); err != nil {
			return nil, err
		}
	}
	list := &ConflictList{Conflicts: []ConflictView{}, picked: picks(filter)}
	for i := range found {
		if limit > 0 && i == limit {
			list.More = true
			break
		}
		list.Conflicts = append(list.Conflicts, newConflictView(&found[i]))
	}
	return list, nil
}

// picks tells whether a filter can leave records out.
func picks(filter state.ConflictFilter) bool {
	return filter.Table != "" || filter.Type != "" || !filter.Since.IsZero()
}

// Text writes one line for each conflict.
func (l *ConflictList) Text() string {
	switch {
	case len(l.Conflicts) > 0:
	case l.picked:
		return "no conflicts match\n"
	default:
		return "no conflicts recorded\n"
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tRECORDED\tTYPE\tTABLE\tPOLICY\tRESOLUTION\tXID\tFINISHED AT")
	for i := range l.Conflicts {
		c := &l.Conflicts[i]
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n",
			c.ID, moment(c.At), c.Type, plain.Line(c.Schema+"."+c.Table), c.Policy, c.Result, c.RemoteXID, c.RemoteCommit)
	}
	_ = table.Flush() // it writes to memory
	if l.More {
		text.WriteString("and older ones: --limit 0 lists all\n")
	}
	return text.String()
}

// ShowConflict returns one conflict with the values of its rows.
func ShowConflict(ctx context.Context, ends Endpoints, id int64) (*ConflictView, error) {
	target, store, err := ends.openState(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	recorded, err := store.Conflict(ctx, id)
	if err != nil {
		return nil, apply.TargetError(err)
	}
	if recorded == nil {
		return nil, refused("`pgapply conflicts list` shows the numbers", "subscription %q has no recorded conflict %d", ends.Name, id)
	}
	view := newConflictView(recorded)
	return &view, nil
}

// Text writes the conflict with all values.
func (c *ConflictView) Text() string {
	var page page
	page.line("conflict", "%d, recorded %s", c.ID, moment(c.At))
	page.line("type", "%s on %s.%s%s", c.Type, c.Schema, c.Table, after(" by ", c.Operation))
	page.line("resolution", "%s%s", c.Result, after(", by policy ", string(c.Policy)))
	committed := ""
	if c.RemoteTime != nil {
		committed = ", committed " + c.RemoteTime.Format(time.RFC3339Nano)
	}
	page.line("transaction", "%d%s, finished at %s%s", c.RemoteXID, committed, c.RemoteCommit, after(", origin ", c.RemoteOrigin))
	if c.ReplicaIdentity != nil {
		page.line("searched by", "%s", c.ReplicaIdentity)
	}
	if c.RemoteTuple != nil {
		page.line("remote row", "%s", c.RemoteTuple)
	}
	for i := range c.Local {
		localLines(&page, &c.Local[i])
	}
	return page.text.String()
}

func localLines(page *page, local *conflict.Local) {
	page.line("local row", "%s%s", local.Tuple, after(" in ", local.Table))
	if local.Index != "" {
		page.line("  index", "%s%s", local.Index, after(", key ", string(local.Key)))
	}
	if local.XID == "" {
		return
	}
	when, who := "", ""
	if local.CommitTime != nil {
		when, who = ", committed "+local.CommitTime.UTC().Format(time.RFC3339Nano), ", here"
		if local.Origin != "" {
			who = ", origin " + local.Origin
		}
	}
	page.line("  written", "by transaction %s%s%s", local.XID, when, who)
}

// ClearOptions say which records to delete.
type ClearOptions struct {
	Endpoints
	// Filter picks them; its Limit does not count.
	Filter state.ConflictFilter
	// Confirmed says that the operator agreed. Without it nothing is deleted, and the
	// number that comes with the error is how many would be.
	Confirmed bool
}

// ClearConflicts deletes records, and returns how many. The rows that they hold may
// exist nowhere else.
func ClearConflicts(ctx context.Context, options ClearOptions) (int64, error) {
	target, store, err := options.openState(ctx)
	if err != nil {
		return 0, err
	}
	defer closeTarget(target.conn)
	if err := target.writable(); err != nil {
		return 0, err
	}
	picked, err := store.CountConflicts(ctx, options.Filter)
	if err != nil {
		return 0, apply.TargetError(err)
	}
	if picked == 0 {
		return 0, known(ctx, target, store)
	}
	if !options.Confirmed {
		return picked, refused("repeat with --yes", "the deletion of %s is not confirmed", counted(picked, "recorded conflict"))
	}
	deleted, err := store.ClearConflicts(ctx, options.Filter)
	return deleted, targetErrorOrNil(err)
}

// known refuses a subscription that the state does not have, where finding nothing
// would otherwise look like an answer.
func known(ctx context.Context, target *targetSession, store *state.Store) error {
	subscription, err := store.Subscription(ctx)
	switch {
	case err != nil:
		return apply.TargetError(err)
	case subscription == nil:
		return target.unknown(ctx, store)
	}
	return nil
}

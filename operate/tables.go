package operate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/plain"
)

// Membership is what a refresh or a resync did to the tables of a subscription.
type Membership struct {
	Subscription string `json:"subscription"`
	// Added are copied next, unless the rows on the target were said to be the
	// publisher's. Removed get no changes any more; their rows stay.
	Added   []string `json:"added"`
	Removed []string `json:"removed"`
	// Again are copied again, over rows that are removed then.
	Again []string `json:"copied_again"`
	// Runner tells that a process lives that acts on it now, not only when one is started.
	Runner bool `json:"runner"`

	copies bool
}

// Refresh makes the tables of a subscription those that its publications have now, as
// ALTER SUBSCRIPTION ... REFRESH PUBLICATION does. Without copyData the rows on the
// target are taken for the publisher's.
func Refresh(ctx context.Context, ends Endpoints, copyData bool) (*Membership, error) {
	target, store, err := ends.openState(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	subscription, tables, err := tablesOf(ctx, target, store)
	if err != nil {
		return nil, err
	}
	publisher, identity, err := ends.openSourceIn(ctx, target.server.Encoding)
	if err != nil {
		return nil, apply.SourceError(err)
	}
	defer closeSource(publisher)
	if identity.SystemID != subscription.Source.SystemID || identity.Database != subscription.Source.Database {
		return nil, refused("give the publisher's --source", "--source is database %q of system %s, and subscription %q follows database %q of system %s",
			identity.Database, identity.SystemID, ends.Name, subscription.Source.Database, subscription.Source.SystemID)
	}
	published, err := publisher.Tables(ctx, subscription.Publications)
	if err != nil {
		return nil, apply.SourceError(err)
	}
	filter, err := recordedFilter(subscription.Settings)
	if err != nil {
		return nil, err
	}
	done := &Membership{Subscription: ends.Name, Added: []string{}, Removed: []string{}, Again: []string{}, copies: copyData}
	var add []state.Table
	var remove []state.Member
	now := make(map[state.Member]bool)
	known := make(map[state.Member]bool)
	for _, table := range tables {
		known[table.Member] = true
	}
	for _, table := range published {
		member := state.Member(table)
		if !filter.Has(table.Schema, table.Name) {
			continue
		}
		now[member] = true
		if !known[member] {
			enters := state.Table{Member: member, State: state.TableInit}
			if !copyData {
				enters.State = state.TableReady
			}
			add = append(add, enters)
			done.Added = append(done.Added, strings.ToValidUTF8(table.Schema+"."+table.Name, "?"))
		}
	}
	for _, table := range tables {
		if !now[table.Member] {
			remove = append(remove, table.Member)
			done.Removed = append(done.Removed, table.Text)
		}
	}
	if len(add)+len(remove) > 0 {
		if err := store.ChangeTables(ctx, add, remove, nil); err != nil {
			return nil, apply.TargetError(err)
		}
	}
	return done, done.lookForRunner(ctx, store)
}

// Resync has tables of a subscription copied again. What the target has of them is
// removed when the copy begins, which wants to be confirmed.
func Resync(ctx context.Context, ends Endpoints, names []string, confirmed bool) (*Membership, error) {
	target, store, err := ends.openState(ctx)
	if err != nil {
		return nil, err
	}
	defer closeTarget(target.conn)
	_, tables, err := tablesOf(ctx, target, store)
	if err != nil {
		return nil, err
	}
	done := &Membership{Subscription: ends.Name, Added: []string{}, Removed: []string{}, Again: []string{}, copies: true}
	var again []state.Member
	for _, name := range names {
		found := slices.IndexFunc(tables, func(table state.Table) bool {
			return name == table.Text || name == table.Schema+"."+table.Name || name == table.Name && table.Schema == "public"
		})
		if found < 0 {
			return nil, refused("give SCHEMA.TABLE as `pgapply status --tables` shows it", "subscription %q has no table %q", ends.Name, name)
		}
		again = append(again, tables[found].Member)
		done.Again = append(done.Again, tables[found].Text)
	}
	if !confirmed {
		return done, refused("repeat with --yes", "the rows that the target has in %s are not confirmed to go", strings.Join(done.Again, ", "))
	}
	if err := store.ChangeTables(ctx, nil, nil, again); err != nil {
		return nil, apply.TargetError(err)
	}
	return done, done.lookForRunner(ctx, store)
}

func tablesOf(ctx context.Context, target *targetSession, store *state.Store) (*state.Subscription, []state.Table, error) {
	if err := target.writable(); err != nil {
		return nil, nil, err
	}
	subscription, err := store.Subscription(ctx)
	if err != nil {
		return nil, nil, apply.TargetError(err)
	}
	if subscription == nil {
		return nil, nil, target.unknown(ctx, store)
	}
	tables, err := store.Tables(ctx)
	if err != nil {
		return nil, nil, apply.TargetError(err)
	}
	return subscription, tables, nil
}

// recordedFilter is that of the last start.
func recordedFilter(settings json.RawMessage) (apply.TableFilter, error) {
	var recorded struct {
		Include []string `json:"include_tables"`
		Exclude []string `json:"exclude_tables"`
	}
	if err := json.Unmarshal(settings, &recorded); err != nil {
		return apply.TableFilter{}, fmt.Errorf("read the settings of the last start: %w", err)
	}
	return apply.TableFilter{Include: recorded.Include, Exclude: recorded.Exclude}, nil
}

func (m *Membership) lookForRunner(ctx context.Context, store *state.Store) error {
	holder, err := store.LockHolder(ctx)
	if err != nil {
		return apply.TargetError(err)
	}
	m.Runner = holder != nil
	return nil
}

// Text says what was done, a line for each table.
func (m *Membership) Text() string {
	var text strings.Builder
	for _, table := range m.Added {
		if m.copies {
			fmt.Fprintf(&text, "added %s, to be copied\n", plain.Line(table))
		} else {
			fmt.Fprintf(&text, "added %s, with the rows that the target has\n", plain.Line(table))
		}
	}
	for _, table := range m.Removed {
		fmt.Fprintf(&text, "removed %s: its changes are left out, its rows stay\n", plain.Line(table))
	}
	for _, table := range m.Again {
		fmt.Fprintf(&text, "%s is copied again\n", plain.Line(table))
	}
	switch {
	case len(m.Added)+len(m.Removed)+len(m.Again) == 0:
		fmt.Fprintf(&text, "subscription %q has the tables that are published\n", m.Subscription)
	case m.Runner:
		text.WriteString("the runner acts on it now: see `pgapply status`\n")
	default:
		text.WriteString("no runner lives: `pgapply run` acts on it when it is started\n")
	}
	return Named(text.String(), m.Subscription)
}

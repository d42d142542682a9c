package conflict

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Policy says what to do about a type of conflict.
type Policy string

// The policies.
const (
	// Error rolls the transaction back and stops there.
	Error Policy = "error"
	// Skip lets a change go that has no row.
	Skip Policy = "skip"
	// ApplyRemote makes the target as the publisher says.
	ApplyRemote Policy = "apply_remote"
	// KeepLocal lets the change go.
	KeepLocal Policy = "keep_local"
	// LastUpdateWins compares commit times, which the target must track.
	LastUpdateWins Policy = "last_update_wins"
)

// allowed are the policies of each type, the native behaviour first.
func allowed(t Type) []Policy {
	switch t {
	case InsertExists, UpdateExists, MultipleUnique:
		return []Policy{Error, ApplyRemote, KeepLocal, LastUpdateWins}
	case UpdateMissing, UpdateDeleted:
		return []Policy{Skip, Error, ApplyRemote}
	case DeleteMissing:
		return []Policy{Skip, Error}
	case UpdateOriginDiffers, DeleteOriginDiffers:
		return []Policy{ApplyRemote, Error, KeepLocal, LastUpdateWins}
	}
	return nil
}

// Policies are the policies of a subscription. The zero value is the native
// behaviour. It must not change once it is in use.
type Policies struct {
	general map[Type]Policy
	tables  map[tableType]Policy
}

type tableType struct {
	table string // schema.table
	Type
}

// For returns the policy of a type of conflict on a table.
func (p *Policies) For(schema, table string, t Type) Policy {
	if policy, ok := p.tables[tableType{schema + "." + table, t}]; ok {
		return policy
	}
	if policy, ok := p.general[t]; ok {
		return policy
	}
	return allowed(t)[0]
}

// Set reads TYPE=POLICY, or SCHEMA.TABLE:TYPE=POLICY for one table, and adds it.
// The table's name is as it is stored, without quotes.
func (p *Policies) Set(text string) error {
	name, policy, found := strings.Cut(text, "=")
	if !found {
		return fmt.Errorf("conflict policy %q is not of the form TYPE=POLICY or SCHEMA.TABLE:TYPE=POLICY", text)
	}
	table := ""
	if colon := strings.LastIndex(name, ":"); colon >= 0 {
		table, name = name[:colon], name[colon+1:]
		if !strings.Contains(table, ".") {
			return fmt.Errorf("conflict policy %q: name the table with its schema, such as public.%s", text, table)
		}
	}
	t := Type(name)
	policies := allowed(t)
	if policies == nil {
		return fmt.Errorf("conflict policy %q: %q is not one of the types %s", text, name, join(Types()))
	}
	if !slices.Contains(policies, Policy(policy)) {
		return fmt.Errorf("conflict policy %q: for %s it must be one of %s", text, name, join(policies))
	}
	if table == "" {
		if p.general == nil {
			p.general = make(map[Type]Policy)
		}
		p.general[t] = Policy(policy)
		return nil
	}
	if p.tables == nil {
		p.tables = make(map[tableType]Policy)
	}
	p.tables[tableType{table, t}] = Policy(policy)
	return nil
}

func join[T ~string](list []T) string {
	texts := make([]string, len(list))
	for i, item := range list {
		texts[i] = string(item)
	}
	return strings.Join(texts, ", ")
}

// Uses tells whether any conflict may be decided by the policy.
func (p *Policies) Uses(policy Policy) bool {
	has := func(used Policy) bool { return used == policy }
	return slices.ContainsFunc(slices.Collect(maps.Values(p.general)), has) ||
		slices.ContainsFunc(slices.Collect(maps.Values(p.tables)), has)
}

// Strings lists what differs from the native behaviour, in the form that Set reads.
func (p *Policies) Strings() []string {
	var list []string
	for t, policy := range p.general {
		list = append(list, string(t)+"="+string(policy))
	}
	for key, policy := range p.tables {
		list = append(list, key.table+":"+string(key.Type)+"="+string(policy))
	}
	slices.Sort(list)
	return list
}

// Stamp says when a row was written and by which node. Node must be the same for
// one node wherever it is looked at from, so that two nodes that replicate to each
// other decide alike: the system identifier of its server.
type Stamp struct {
	Time time.Time
	Node string
}

// Decide says whether the remote change goes in, keeps out, or fails. local are
// the rows in the way that another origin wrote, newest information first; rows of
// our own origin never win against their own later change.
func Decide(policy Policy, remote Stamp, local []Stamp) Resolution {
	switch policy {
	case ApplyRemote:
		return Applied
	case KeepLocal:
		return Kept
	case Skip:
		return Skipped
	case LastUpdateWins:
		for _, row := range local {
			if !later(remote, row) {
				return Kept
			}
		}
		return Applied
	case Error:
	}
	return Failed
}

// later compares by time, and by node where the times are equal.
func later(a, b Stamp) bool {
	if a.Time.Equal(b.Time) {
		return a.Node > b.Node
	}
	return a.Time.After(b.Time)
}

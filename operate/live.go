package operate

import (
	"cmp"
	"time"

	"pgapply/apply"
	"pgapply/apply/state"
)

// Live is what a runner knows of itself, for a report that asks nobody.
type Live struct {
	Name string
	// Runner is this process. Its HeartbeatAge is how long ago the engine's own loops
	// have last shown that they turn.
	Runner state.Runner
	// Records are nil until the engine has read them.
	Records *apply.Records
	// Publisher is nil until it was asked.
	Publisher *PublisherView
}

// Report is what ReadStatus would say, as far as the runner knows it: what the target
// records is as old as Records, and what the publisher says as old as Publisher.
func (l *Live) Report() *Report {
	records, runner := cmp.Or(l.Records, &apply.Records{}), l.Runner
	runner.Heartbeat = time.Now().Add(-runner.HeartbeatAge)
	report := newReport(l.Name, records.Target, observation{
		subscription: records.Subscription, runner: &runner, holder: &state.Holder{},
		tables: records.Tables, indexes: records.WaitingIndexes,
		conflicts: records.Conflicts, prepared: records.Prepared,
	})
	report.Runner.Lock = "this process"
	if l.Publisher != nil {
		report.judgePublisher(l.Publisher, records.Subscription)
	}
	return report
}

// Conflicts are the newest conflicts that the engine has read, newest first. Their rows'
// values are left out unless they are asked for, and where they are long.
func (l *Live) Conflicts(values bool) []ConflictView {
	views := []ConflictView{}
	if l.Records == nil {
		return views
	}
	for i := range l.Records.Recent {
		recorded := l.Records.Recent[i]
		if !values {
			recorded.ReplicaIdentity, recorded.RemoteTuple, recorded.Local = nil, nil, nil
		}
		views = append(views, newConflictView(&recorded))
	}
	return views
}

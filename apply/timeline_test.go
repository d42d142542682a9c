package apply

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply/state"
	"pgapply/internal/lsn"
	"pgapply/internal/source"
)

// lineOf is a publisher that has gone through timelines which ended where they say.
func lineOf(t *testing.T, timeline int32, history string) source.Identity {
	t.Helper()
	parsed, err := source.ParseHistory(history)
	require.NoError(t, err)
	return source.Identity{SystemID: "1", Database: "d", Timeline: timeline, History: parsed, Position: 0x1000}
}

// TestFork: up to where two logs are one.
func TestFork(t *testing.T) {
	for _, c := range []struct {
		name           string
		followed       int32
		was            string
		timeline       int32
		is             string
		shared         lsn.LSN
		fails, oldLine bool
	}{
		{"the same server", 1, "", 1, "", endless, false, false},
		{"the same later one", 3, "1 0/10, 2 0/20", 3, "1 0/10, 2 0/20", endless, false, false},
		{"promoted", 1, "", 2, "1 0/10", 0x10, false, false},
		{"promoted twice", 1, "", 3, "1 0/10, 2 0/20", 0x10, false, false},
		{"promoted again", 2, "1 0/10", 3, "1 0/10, 2 0/20", 0x20, false, false},
		{"another standby was promoted to the same number", 2, "1 0/10", 2, "1 0/18", 0x10, false, false},
		{"earlier than the one that was followed", 2, "1 0/10", 2, "1 0/8", 0x8, false, false},
		{"a backup from before the promotion", 2, "1 0/10", 3, "1 0/8", 0x8, false, false},
		{"a backup from behind the promotion, on the old line", 2, "1 0/10", 3, "1 0/12", 0x10, false, false},
		{"a backup of a later timeline", 3, "1 0/10, 2 0/20", 4, "1 0/10, 2 0/18", 0x18, false, false},
		{"the old primary is back", 2, "1 0/10", 1, "", 0x10, false, true},
		{"one that was promoted before the last", 3, "1 0/10, 2 0/20", 2, "1 0/10", 0x20, false, true},
		{"of the same number as one left behind, but another", 3, "1 0/10, 2 0/20", 2, "1 0/8", 0x8, false, false},
		{"what was before is not known here", 2, "1 0/10", 2, "", endless, false, false},
		{"nor there", 2, "", 2, "1 0/10", endless, false, false},
		{"promoted from one whose past is not known", 2, "", 3, "1 0/10, 2 0/20", 0x20, false, false},
		{"the old primary, whose past is not known", 3, "1 0/10, 2 0/20", 2, "", 0x20, false, true},
		{"one whose past is lost", 1, "", 2, "", 0, true, false},
		{"a later one whose past is lost", 2, "1 0/10", 3, "", 0, true, false},
		{"an earlier one that is not known to have been followed", 3, "", 2, "1 0/10", 0, true, false},
		{"a state that nobody can read", 2, "junk", 2, "1 0/10", 0, true, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			shared, err := fork(state.Source{Timeline: c.followed, History: c.was}, lineOf(t, c.timeline, c.is))
			switch {
			case c.oldLine:
				require.ErrorIs(t, err, errOldTimeline)
			case c.fails:
				require.Error(t, err)
				require.NotErrorIs(t, err, errOldTimeline)
				return
			default:
				require.NoError(t, err)
			}
			require.Equal(t, c.shared, shared)
		})
	}
}

// TestEndsAfterTheFirstStart: what a start finds on both ends, against what is recorded.
func TestEndsAfterTheFirstStart(t *testing.T) {
	const sure = Class(255) // no error
	for _, c := range []struct {
		name           string
		change         func(*Ends, *state.Subscription, *source.Slot)
		progress, held lsn.LSN
		noSlot         bool
		class          Class
		retryable      bool
		final          bool
		known          lsn.LSN
		texts          []string
	}{
		{name: "nothing has changed", progress: 0x50, known: 0x60, class: sure},
		{name: "applied beyond what was acknowledged", progress: 0x70, known: 0x70, class: sure},
		{
			name: "a slot behind: what comes again is told apart", progress: 0x50, known: 0x60, class: sure,
			change: func(_ *Ends, _ *state.Subscription, slot *source.Slot) { slot.ConfirmedFlush = 0x20 },
		},
		{
			name: "a slot at the acknowledgement", progress: 0x50, known: 0x60, class: sure,
			change: func(_ *Ends, _ *state.Subscription, slot *source.Slot) { slot.ConfirmedFlush = 0x60 },
		},
		{
			name: "a slot ahead", progress: 0x50, class: SlotLost, texts: []string{"0/61", "0/60", "somebody else used it", "failover"},
			change: func(_ *Ends, _ *state.Subscription, slot *source.Slot) { slot.ConfirmedFlush = 0x61 },
		},
		{name: "copies ahead of the stream are no progress", progress: 0x50, held: 0x90, known: 0x60, class: sure},

		{name: "no slot", noSlot: true, class: SlotLost, texts: []string{`slot "s" is gone`}},
		{
			name: "no slot on a standby", noSlot: true, class: Refused, texts: []string{"which is a standby", "target_session_attrs"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { e.Publisher.InRecovery = true },
		},
		{
			name: "no slot behind a failover", noSlot: true, class: SlotLost, texts: []string{"a standby was promoted", "--failover"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { *e = promoted(t, e, "1 0/60") },
		},
		{
			name: "no slot behind a failover before 17", noSlot: true, class: SlotLost, texts: []string{"before 17"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) {
				*e = promoted(t, e, "1 0/60")
				e.PublisherVersion = 16_00_00
			},
		},
		{
			name: "a slot of another database", class: SlotLost, texts: []string{"another one has its name"},
			change: func(_ *Ends, _ *state.Subscription, slot *source.Slot) { slot.Database = "e" },
		},
		{
			name: "a slot of another plugin", class: SlotLost, texts: []string{"another one has its name"},
			change: func(_ *Ends, _ *state.Subscription, slot *source.Slot) { slot.Plugin = "test_decoding" },
		},
		{
			name: "a physical slot", class: SlotLost, texts: []string{"another one has its name"},
			change: func(_ *Ends, _ *state.Subscription, slot *source.Slot) { slot.Type, slot.Plugin = "physical", "" },
		},
		{
			name: "a slot that is lost", class: SlotLost, texts: []string{"wal_removed"},
			change: func(_ *Ends, _ *state.Subscription, slot *source.Slot) { slot.WALStatus = "lost" },
		},

		{
			name: "another system", class: Refused, final: true, texts: []string{"system 1", "system 7", "cleanup"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { e.Publisher.SystemID = "7" },
		},
		{
			name: "another database", class: Refused, final: true, texts: []string{`"d"`, `"e"`},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { e.Publisher.Database = "e" },
		},
		{
			name: "a copy of the target on another system", class: Refused, final: true, texts: []string{"a copy", "--keep-slot"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { e.Target.SystemID = "8" },
		},
		{
			name: "a copy of the target beside it", class: Refused, final: true, texts: []string{"a copy", "--keep-slot"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { e.Target.DatabaseOID = 9 },
		},

		{
			name: "the publisher's log is shorter than what is applied", progress: 0x50, class: SlotLost, texts: []string{"ends at 0/4F", "set back", "verify"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { e.Publisher.Position = 0x4f },
		},
		{
			name: "than what was acknowledged", progress: 0x50, class: SlotLost, texts: []string{"ends at 0/5F", "0/60"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { e.Publisher.Position = 0x5f },
		},
		{
			name: "as long", progress: 0x50, known: 0x60, class: sure,
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { e.Publisher.Position = 0x60 },
		},
		{
			name: "a standby that is behind", progress: 0x50, class: Source, retryable: true, texts: []string{"has replayed up to 0/5F"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) {
				e.Publisher.Position, e.Publisher.InRecovery = 0x5f, true
			},
		},

		{
			name: "promoted with all that was applied and acknowledged", progress: 0x50, known: 0x60, class: sure,
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { *e = promoted(t, e, "1 0/60") },
		},
		{
			name: "promoted with all that was applied", progress: 0x50, known: 0x50, class: sure,
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { *e = promoted(t, e, "1 0/50") },
		},
		{
			name: "promoted without the last that was applied", progress: 0x50, class: SlotLost, texts: []string{"timeline 2", "timeline 1", "at 0/4F", "0/50", "verify"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { *e = promoted(t, e, "1 0/4F") },
		},
		{
			name: "promoted without rows that were copied", progress: 0x50, held: 0x58, class: SlotLost, texts: []string{"at 0/57", "0/58"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { *e = promoted(t, e, "1 0/57") },
		},
		{
			name: "promoted before the slot began", progress: 0x5, class: SlotLost, texts: []string{"at 0/F", "0/10"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { *e = promoted(t, e, "1 0/F") },
		},
		{
			name: "promoted, and somebody has used the slot there", progress: 0x50, class: SlotLost, texts: []string{"is confirmed up to 0/58"},
			change: func(e *Ends, _ *state.Subscription, slot *source.Slot) {
				*e = promoted(t, e, "1 0/50")
				slot.ConfirmedFlush = 0x58
			},
		},
		{
			name: "a standby that was promoted while we streamed from it", progress: 0x58, known: 0x60, class: sure,
			change: func(e *Ends, s *state.Subscription, slot *source.Slot) {
				*e = promoted(t, e, "1 0/50")
				s.Source.InRecovery, slot.ConfirmedFlush = true, 0x58
			},
		},
		{
			name: "another standby was promoted than that which we streamed from", progress: 0x58, class: SlotLost, texts: []string{"at 0/50"},
			change: func(e *Ends, s *state.Subscription, _ *source.Slot) {
				*e = promoted(t, e, "1 0/50")
				s.Source.InRecovery = true
			},
		},
		{
			name: "the old primary is back", progress: 0x50, class: Refused, texts: []string{"the old primary is back", "timeline 1", "timeline 2"},
			change: func(_ *Ends, s *state.Subscription, _ *source.Slot) {
				s.Source.Timeline, s.Source.History = 2, "1 0/70"
			},
		},
		{
			name: "a standby that has not followed yet", progress: 0x50, class: Source, retryable: true, texts: []string{"is on timeline 1 still"},
			change: func(e *Ends, s *state.Subscription, _ *source.Slot) {
				e.Publisher.InRecovery = true
				s.Source.Timeline, s.Source.History = 2, "1 0/70"
			},
		},
		{
			name: "promoted, and the history is lost", progress: 0x50, class: Refused, texts: []string{"cannot be told", "00000002.history"},
			change: func(e *Ends, _ *state.Subscription, _ *source.Slot) { *e = promoted(t, e, "") },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			options := DefaultOptions()
			options.Name = "s"
			ends := &Ends{
				Options: &options, PublisherVersion: 18_00_00, Publisher: lineOf(t, 1, ""),
				Target: state.Target{SystemID: "2", DatabaseOID: 5, Database: "there"},
			}
			subscription := &state.Subscription{
				Name: "s", SlotName: "s", Source: state.Source{SystemID: "1", Timeline: 1, Database: "d"},
				TargetSystemID: "2", TargetDatabaseOID: 5, ConsistentPoint: 0x10, AckLSN: 0x60,
			}
			slot := &source.Slot{Name: "s", Type: "logical", Plugin: "pgoutput", Database: "d", ConfirmedFlush: 0x40}
			if c.change != nil {
				c.change(ends, subscription, slot)
			}
			if c.noSlot {
				slot = nil
			}
			err := ends.MayResume(subscription, slot)
			var known lsn.LSN
			if err == nil {
				known, err = ends.Known(subscription, slot, c.progress, c.held)
			}
			if c.class == sure {
				require.NoError(t, err)
				require.Equal(t, c.known, known)
				return
			}
			require.Error(t, err)
			typed := classify(err)
			require.Equal(t, c.class, typed.Class, "%v", err)
			require.Equal(t, c.retryable, typed.Retryable)
			require.Equal(t, c.final, typed.Final)
			require.NotEmpty(t, typed.Hint)
			for _, text := range c.texts {
				require.Contains(t, typed.Error()+"\n"+typed.Hint, text)
			}
		})
	}
}

// promoted are ends whose publisher is on timeline 2.
func promoted(t *testing.T, e *Ends, history string) Ends {
	t.Helper()
	after := *e
	after.Publisher = lineOf(t, 2, history)
	return after
}

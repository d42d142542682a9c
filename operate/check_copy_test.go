package operate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"pgapply/apply"
	"pgapply/apply/state"
	"pgapply/internal/source"
)

// What a copy takes on both ends, beside what a runner takes.
func TestCheckOfRoomForACopy(t *testing.T) {
	bed := func() *facts {
		return &facts{
			options: apply.Options{CopyData: true, TableJobs: 3, Workers: 2},
			publisher: &publisherFacts{
				slotsInUse: 1, ready: source.Readiness{MaxSlots: 3, MaxSenders: 2}, room: &publisherRoom{sessions: []sessionLimit{
					{name: "max_connections", allowed: 7, inUse: 4}, {name: "the role's CONNECTION LIMIT", allowed: 5, ofSenders: true}, {name: "the database's CONNECTION LIMIT", allowed: -1},
				}},
			},
			target: &targetFacts{room: targetRoom{
				Connections: 10, Reserved: 1, Connected: 3, RoleConnections: -1, DatabaseConnections: -1,
				Origins: 5, OriginSetting: "max_replication_slots",
			}},
		}
	}
	require.Empty(t, checkCopyRoom(bed()), "it is just enough")
	for name, test := range map[string]struct {
		change func(*facts)
		ask    func(*facts) []Finding
		level  Level
		text   string
	}{
		"walsenders":              {func(f *facts) { f.publisher.room.senders = 1 }, checkCopyRoom, Warning, "beside 2 walsenders in all, and max_wal_senders leaves 1 of 2"},
		"a second slot":           {func(f *facts) { f.publisher.slotsInUse = 2 }, checkCopyRoom, Warning, "max_replication_slots, 3, leaves none"},
		"the publisher's":         {func(f *facts) { f.publisher.room.sessions[0].inUse = 5 }, checkCopyRoom, Warning, "copied with 3 connections, and max_connections leaves 2 of 7"},
		"of the role":             {func(f *facts) { f.publisher.room.sessions[1].inUse = 1 }, checkCopyRoom, Warning, "copied with 5 connections, walsenders among them, and the role's CONNECTION LIMIT leaves 4 of 5"},
		"of the database":         {func(f *facts) { f.publisher.room.sessions[2].allowed = 2 }, checkCopyRoom, Warning, "copied with 3 connections, and the database's CONNECTION LIMIT leaves 2 of 2"},
		"the target's":            {func(*facts) {}, checkConnections, OK, "3 of 10 in use; a runner takes 3, and 3 more while it copies tables"},
		"the target's are few":    {func(f *facts) { f.target.room.Connected = 4 }, checkConnections, Warning, "needs 3 connections, and 3 more while it copies tables, and max_connections leaves 5 of 9"},
		"none for the runner":     {func(f *facts) { f.target.room.Connected = 7 }, checkConnections, Failure, "a runner needs 3 connections, and max_connections leaves 2 of 9"},
		"origins":                 {func(*facts) {}, checkOrigins, OK, "0 of 5"},
		"origins are few":         {func(f *facts) { f.target.room.Origins = 4 }, checkOrigins, Warning, "a runner needs 5 replication origins, max_replication_slots is 4"},
		"origins are too few":     {func(f *facts) { f.target.room.Origins = 2 }, checkOrigins, Failure, "max_replication_slots is 2"},
		"origins without copying": {func(f *facts) { f.target.room.Origins, f.options.CopyData = 2, false }, checkOrigins, OK, "0 of 2"},
	} {
		t.Run(name, func(t *testing.T) {
			f := bed()
			test.change(f)
			findings := test.ask(f)
			require.Len(t, findings, 1)
			require.Equal(t, test.level, findings[0].Level)
			require.Contains(t, findings[0].Text, test.text)
		})
	}
	running := bed()
	running.publisher.room.senders, running.target.holder = 2, &state.Holder{}
	require.Empty(t, checkCopyRoom(running), "those of the runner are among them")
}

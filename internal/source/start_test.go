package source

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSettingsAreLowered(t *testing.T) {
	wish := StreamOptions{
		Slot: "s", Publications: []string{"p"}, Streaming: "parallel", TwoPhase: true, Binary: true, Messages: true, Origin: "none",
		StatusInterval: time.Second, ReceiveTimeout: time.Minute,
	}
	for major, want := range map[int]Settings{
		10: {ProtocolVersion: 1, Streaming: "off", Origin: "any"},
		13: {ProtocolVersion: 1, Streaming: "off", Origin: "any"},
		14: {ProtocolVersion: 2, Streaming: "on", Binary: true, Messages: true, Origin: "any"},
		15: {ProtocolVersion: 3, Streaming: "on", Binary: true, Messages: true, TwoPhase: true, Origin: "any"},
		16: {ProtocolVersion: 4, Streaming: "parallel", Binary: true, Messages: true, TwoPhase: true, Origin: "none"},
		19: {ProtocolVersion: 4, Streaming: "parallel", Binary: true, Messages: true, TwoPhase: true, Origin: "none"},
	} {
		want.StatusInterval, want.ReceiveTimeout = time.Second, time.Minute
		got, err := settingsFor(major, wish)
		require.NoError(t, err)
		require.Equal(t, want, got, "major %d", major)
	}
	plain, err := settingsFor(18, StreamOptions{Slot: "s", Publications: []string{"p"}})
	require.NoError(t, err)
	require.Equal(t, Settings{
		ProtocolVersion: 4, Streaming: "off", Origin: "any", StatusInterval: defaultStatusInterval, ReceiveTimeout: defaultReceiveTimeout,
	}, plain)
}

func TestSettingsAreRefused(t *testing.T) {
	for _, options := range []StreamOptions{
		{Publications: []string{"p"}},
		{Slot: "s"},
		{Slot: "s", Publications: []string{"p"}, Streaming: "always"},
		{Slot: "s", Publications: []string{"p"}, Origin: "pg_1"},
	} {
		_, err := settingsFor(18, options)
		require.Equal(t, Configuration, ClassOf(err), "%+v", options)
	}
}

func TestStartCommand(t *testing.T) {
	options := StreamOptions{Slot: `s"1`, Start: 0x16B374D848, Publications: []string{"p", `it's "p",2`}}
	require.Equal(t,
		`START_REPLICATION SLOT "s""1" LOGICAL 16/B374D848 (proto_version '1', publication_names '"p","it''s ""p"",2"')`,
		startCommand(10, options, Settings{ProtocolVersion: 1, Streaming: "off", Origin: "any"}))
	require.Equal(t,
		`START_REPLICATION SLOT "s""1" LOGICAL 16/B374D848 (proto_version '4', streaming 'parallel', two_phase 'on', origin 'none', `+
			`publication_names '"p","it''s ""p"",2"', binary 'true', messages 'true')`,
		startCommand(16, options, Settings{ProtocolVersion: 4, Streaming: "parallel", TwoPhase: true, Binary: true, Messages: true, Origin: "none"}))
}

func TestPIDInAnyLanguage(t *testing.T) {
	for message, want := range map[string]int{
		`replication slot "s9" is active for PID 4711`:  4711,
		`Replikations-Slot »s9« ist aktiv für PID 4711`: 4711,
		`レプリケーションスロット"s"はPID 4711で有効です`:                 4711,
		`no number`: 0,
	} {
		require.Equal(t, want, pidIn(message))
	}
}

package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseContender(t *testing.T) {
	for name, wanted := range map[string]contender{
		"decode":                        {kind: decode},
		"decode+streaming=on+binary":    {kind: decode, streaming: "on", binary: true},
		"native+streaming=off":          {kind: native, streaming: "off"},
		"pgapply+workers=1+group=50":    {kind: pgapply, workers: 1, group: 50},
		"pgapply+binary+rtt=30ms":       {kind: pgapply, binary: true, rtt: 30 * time.Millisecond},
		"pgapply+batch=0":               {kind: pgapply, batch: new(int64)},
		"pgapply+program=./old":         {kind: pgapply, program: "./old"},
		"pgapply+streaming=parallel":    {kind: pgapply, streaming: "parallel"},
		"native+binary+streaming=off":   {kind: native, binary: true, streaming: "off"},
		"pipe+binary":                   {kind: pipe, binary: true},
		"pgapply+defer-indexes+jobs=4":  {kind: pgapply, deferIndexes: true, jobs: 4},
		"pgapply+split=0+analyze=off":   {kind: pgapply, split: new(int64), noAnalyze: true},
		"pgapply+rtt=5ms+streaming=off": {kind: pgapply, rtt: 5 * time.Millisecond, streaming: "off"},
	} {
		found, err := parseContender(name)
		require.NoError(t, err)
		wanted.name = name
		require.Equal(t, wanted, found)
	}
	for name, fault := range map[string]string{
		"pglogical":           "is not decode, native, pgapply or pipe",
		"native+workers=2":    "native has no such setting",
		"native+streaming=up": "native has no such setting",
		"pipe+streaming=on":   "pipe has no such setting",
		"native+jobs=2":       "native has no such setting",
		"pgapply+binary=off":  "pgapply has no such setting",
		"pgapply+workers=two": "invalid syntax",
	} {
		_, err := parseContenders("decode," + name)
		require.ErrorContains(t, err, fault, name)
		require.ErrorContains(t, err, name)
	}
}

func TestWorkloadsHaveContenders(t *testing.T) {
	for _, w := range workloads(1) {
		require.NotEmpty(t, w.contenders, w.name)
		require.Equal(t, w.live != nil, w.fill == "", w.name)
	}
}

func TestASlowLinkIsOneMoreContender(t *testing.T) {
	o, err := parseOptions([]string{"-workloads", "W1,W6,W9", "-rtt", "30ms"})
	require.NoError(t, err)
	names := func(i int) (names []string) {
		for _, c := range o.contendersOf(o.workloads[i]) {
			names = append(names, c.name)
		}
		return names
	}
	require.Equal(t, []string{"decode", "native", "native+binary", "pgapply", "pgapply+binary", "pgapply+rtt=30ms"}, names(0), "once, where it is one already")
	require.Equal(t, []string{"decode", "native", "native+binary", "pgapply", "pgapply+binary", "pgapply+rtt=30ms"}, names(1))
	require.Equal(t, []string{"native", "pgapply"}, names(2), "an idle one is no matter of speed")
}

package faultnet

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	rules, err := Parse(`
		# the third commit is done, and nobody knows
		reply COMMIT 3: mute
		before STATUS UPDATE: cut
		after PREPARE TRANSACTION 12: reset, refuse for 500ms
		now: stall server for 2s, delay 20ms, trickle both 500 B/s for 1s, cut all
		now: resume client, accept
	`)
	require.NoError(t, err)
	require.Equal(t, []Rule{
		{Moment{Reply, "COMMIT", 3}, []Action{{Verb: Mute}}},
		{Moment{Before, "STATUS UPDATE", 1}, []Action{{Verb: Cut}}},
		{Moment{After, "PREPARE TRANSACTION", 12}, []Action{{Verb: Reset}, {Verb: Refuse, Lasts: 500 * time.Millisecond}}},
		{Moment{}, []Action{
			{Verb: Stall, From: FromServer, Lasts: 2 * time.Second},
			{Verb: Delay, By: 20 * time.Millisecond},
			{Verb: Trickle, From: BothWays, Rate: 500, Lasts: time.Second},
			{Verb: Cut, All: true},
		}},
		{Moment{}, []Action{{Verb: Resume, From: FromClient}, {Verb: Accept}}},
	}, rules)
}

func TestParseSaysWhatIsWrong(t *testing.T) {
	for script, want := range map[string]string{
		"before COMMIT":                     "line 1: \"before COMMIT\" has no colon",
		"\n# x\nsoon: cut all":              "line 3: \"soon\" is not now, nor before, after or reply",
		": cut all":                         "is not now",
		"before: cut":                       "is not a statement such as COMMIT",
		"before commit: cut":                "in upper case",
		"after COMMIT 0: cut":               `"0" is not the number of a statement`,
		"after COMMIT 1x: cut":              `"1x" is not the number`,
		"reply STATUS UPDATE: cut":          "has no reply",
		"now: cut":                          `which connection? say "cut all"`,
		"now:":                              `"" is not one of cut, reset`,
		"now: explode":                      `"explode" is not one of`,
		"now: stall":                        `stall: "" is not client, server or both`,
		"now: stall server 2s":              `stall: "2s" follows "stall server", where nothing may`,
		"now: stall server for":             `"" is not a time such as 500ms`,
		"now: stall server for -1s":         `"-1s" is not a time`,
		"now: resume both for 1s":           `where nothing may`,
		"now: delay":                        `delay: "" is not a time`,
		"now: trickle client 0 B/s":         `"0 B/s" is not a rate such as 500 B/s`,
		"now: trickle client 5":             `"5" is not a rate`,
		"now: refuse, accept for 1s":        "accept: ",
		"after COMMIT: cut, mute everybody": `mute: "everybody" follows`,
	} {
		_, err := Parse(script)
		require.ErrorContains(t, err, want, "%s", script)
		require.IsType(t, &ScriptError{}, err)
	}
}

// What was read reads the same when it is written down.
func FuzzParse(f *testing.F) {
	f.Add("before COMMIT 3: cut, reset all\nnow: stall both for 1s, trickle client 5 B/s for 20ms")
	f.Add("reply ROLLBACK PREPARED: mute\nnow: delay 1h1m, refuse, accept, resume server, mute all")
	f.Fuzz(func(t *testing.T, script string) {
		rules, err := Parse(script)
		if err != nil {
			require.IsType(t, &ScriptError{}, err)
			return
		}
		var lines []string
		for _, rule := range rules {
			lines = append(lines, rule.String())
		}
		again, err := Parse(strings.Join(lines, "\n"))
		require.NoError(t, err)
		require.Equal(t, rules, again)
	})
}

func TestScriptWithAnErrorDoesNothing(t *testing.T) {
	p := startProxy(t, startBackend(t))
	_, err := p.Play("now: refuse\nnow: nothing")
	require.Error(t, err)
	connect(t, p)
}

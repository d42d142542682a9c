package lsn

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]LSN{
		"0/0":               0,
		"0/1":               1,
		"16/B374D848":       0x16B374D848,
		"16/b374d848":       0x16B374D848,
		"FFFFFFFF/FFFFFFFF": 0xFFFFFFFFFFFFFFFF,
	} {
		got, err := Parse(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "/", "0", "0/", "/0", "16/B374D848junk", "16/ B", " 16/B", "16/B ", "+1/2", "1/-2", "1_0/0",
		"123456789/0", "0/123456789", "g/0", "0/0/0", "0x1/0",
	} {
		_, err := Parse(text)
		require.Error(t, err, text)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("16/B374D848")
	f.Add("0/0junk")
	f.Fuzz(func(t *testing.T, text string) {
		position, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(position.String())
		if err != nil || again != position {
			t.Fatalf("%q parsed to %v, which reads back as %v, %v", text, position, again, err)
		}
	})
}

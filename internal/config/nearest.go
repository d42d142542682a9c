package config

import "strings"

// Nearest is the known name that was probably meant, or the empty string.
func Nearest(name string, known []string) string {
	name = strings.ToLower(strings.NewReplacer("_", "-", " ", "-").Replace(strings.TrimLeft(name, "-")))
	best, least := "", max(2, len(name)/3)+1
	for _, candidate := range known {
		if d := distance(name, candidate); d < least {
			best, least = candidate, d
		}
	}
	return best
}

// distance is how many letters must be put in, taken out or changed to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

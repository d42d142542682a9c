package operate

import (
	"regexp"
	"strings"

	"pgapply/apply"
)

// aimed are the commands, in backquotes, of texts for people that find their subscription
// by --name. What follows the command up to the closing quote is the last group.
var aimed = regexp.MustCompile("`(pgapply (?:run|check|status|pause|resume|skip|refresh|resync|conflicts(?: list| show| delete)?|sequences|verify|cutover|wait|cleanup))((?: [^`]*)?)`")

// Named has the commands that a text recommends carry the subscription's name, so that
// they can be typed as they stand: "see `pgapply status`" becomes "see `pgapply status
// --name crm`". Hints are written, and recorded, without it, and get it where they are
// shown. A command that has a --name keeps it, and the default name needs none.
//
// A name is of a-z, 0-9 and _ only, so that no shell wants it quoted.
func Named(text, subscription string) string {
	if subscription == "" || subscription == apply.DefaultOptions().Name || !strings.Contains(text, "`pgapply ") {
		return text
	}
	return aimed.ReplaceAllStringFunc(text, func(quoted string) string {
		parts := aimed.FindStringSubmatch(quoted)
		if strings.Contains(parts[2], "--name") || strings.Contains(parts[2], "--help") {
			return quoted
		}
		return "`" + parts[1] + " --name " + subscription + parts[2] + "`"
	})
}

// nameFindings is Named for all findings, in place.
func nameFindings(findings []Finding, subscription string) {
	for i := range findings {
		findings[i].Text = Named(findings[i].Text, subscription)
		findings[i].Remedy = Named(findings[i].Remedy, subscription)
	}
}

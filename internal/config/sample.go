package config

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Section is a group of settings in a sample.
type Section struct {
	Title    string
	Settings []Description
}

// Description is a setting as a sample shows it.
type Description struct {
	Name, Usage string
	// Default is its value; lists are empty by default.
	Default string
	List    bool
}

// sampleWidth is what a line of comments fits into.
const sampleWidth = 92

// Sample writes a file that sets nothing: every setting with what it does, commented
// out, at its default. Prose begins with "# ", settings with "#" alone.
func Sample(head string, sections []Section) string {
	var text strings.Builder
	comment(&text, head)
	for _, section := range sections {
		fmt.Fprintf(&text, "\n# --- %s ---\n", section.Title)
		for _, setting := range section.Settings {
			text.WriteString("\n")
			comment(&text, setting.Usage)
			fmt.Fprintf(&text, "#%s: %s\n", setting.Name, setting.value())
		}
	}
	return text.String()
}

func (d *Description) value() string {
	if d.List {
		return "[]"
	}
	return inline(d.Default)
}

// inline writes text as YAML does within a line.
func inline(text string) string {
	node := yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if text == "" {
		node.Style = yaml.DoubleQuotedStyle
	}
	out, err := yaml.Marshal(&node)
	if err != nil {
		return fmt.Sprintf("%q", text)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// comment wraps text, paragraph by paragraph. What is indented stays as it is.
func comment(text *strings.Builder, prose string) {
	for paragraph := range strings.SplitSeq(prose, "\n") {
		if strings.HasPrefix(paragraph, " ") {
			text.WriteString("# " + paragraph + "\n")
			continue
		}
		line := "#"
		for word := range strings.FieldsSeq(paragraph) {
			if len(line)+1+len(word) > sampleWidth {
				text.WriteString(line + "\n")
				line = "#"
			}
			line += " " + word
		}
		text.WriteString(line + "\n")
	}
}

package target

import (
	"pgapply/apply/catalog"
	"pgapply/decoder"
	"pgapply/decoder/txn"
)

// The first change of a table has its binding read from the catalogs, which takes a round
// trip. One must do for all tables of a group, so the catalogs are asked about those that
// later changes will need too. What they say is used in this group only, and as with any
// binding, the target transaction fails where it is not so any more: see Session.pin. Then
// nothing is foreseen while its transactions are applied exactly, since a change may itself
// be what changes a later one's table.

// meet says which group's tables load is to ask about; the function that it returns ends
// that.
func (s *Session) meet(group []*txn.Transaction) (end func()) {
	s.group, s.foreseen = group, nil
	return func() { s.group, s.foreseen = nil, nil }
}

// load binds a relation to the target's table.
func (s *Session) load(relation *decoder.Relation) (*catalog.Table, error) {
	if s.foreseen[relation] == nil {
		if err := s.foresee(relation); err != nil {
			return nil, err
		}
	}
	answers := s.foreseen[relation]
	delete(s.foreseen, relation) // whoever binds it again wants to know anew
	return catalog.Load(said(answers), relation, s.options.Binary)
}

// foresee asks the catalogs about a relation, and others of the group that are not bound.
func (s *Session) foresee(relation *decoder.Relation) error {
	relations := []*decoder.Relation{relation}
	wanted := map[*decoder.Relation]bool{relation: true}
	group := s.group
	if s.exact {
		group = nil
	}
	for _, t := range group {
		for _, other := range t.Relations() {
			if !wanted[other] && len(relations) < mostForeseen && s.unbound(other) {
				wanted[other], relations = true, append(relations, other)
			}
		}
	}
	for _, r := range relations {
		if err := s.askCatalogs(catalog.Queries(), []string{r.Namespace, r.Name}); err != nil {
			return err
		}
	}
	if err := s.drain(0); err != nil {
		return err
	}
	s.foreseen = make(map[*decoder.Relation][][][][]byte, len(relations))
	each := len(catalog.Queries())
	for i, r := range relations {
		s.foreseen[r] = s.answers[i*each : (i+1)*each]
	}
	return nil
}

// mostForeseen bounds what is held of the catalogs.
const mostForeseen = 64

// unbound tells whether the first change of a relation will ask the catalogs. Errors are
// for that to say.
func (s *Session) unbound(relation *decoder.Relation) bool {
	if t := s.tables[relation.ID]; t != nil && (t.relation == relation || sameRelation(t.relation, relation)) {
		return false
	}
	if relation.Namespace == stateSchema || s.boundAhead(relation) != nil {
		return false
	}
	member, err := s.options.Member(relation.Namespace, relation.Name)
	return err == nil && member
}

// said is what the catalogs have answered already.
type said [][][][]byte

// QueryAll implements catalog.QuerierOfAll.
func (a said) QueryAll([]string, ...string) ([][][][]byte, error) { return a, nil }

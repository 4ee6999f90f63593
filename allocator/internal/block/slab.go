package block

// slab cuts small sizes from slabs, each carved at once into objects of one size class, as in Bonwick
// (The slab allocator, 1994). Free objects are kept apart until memory is short; then they join,
// whatever slab they came from. A tlsf serves larger requests.
type slab struct {
	tlsf
	objects classes
}

const (
	slabMax     = 32 << 10 // bytes of the largest object
	slabObjects = 64       // in a new slab
)

// isObject reports whether a block of size bytes can serve as an object.
func isObject(size int64) bool {
	return size <= slabMax && classBytes(classAtMost(size)) == size
}

func (s *slab) find(size int64) *Node {
	if size > slabMax {
		return s.tlsf.find(size)
	}
	class := classFor(size)
	if n := s.objects.lists[class].first; n != nil {
		return n
	}
	bytes := classBytes(class)
	if n := s.tlsf.find(slabObjects * bytes); n != nil {
		return n
	}
	if n := s.tlsf.find(bytes); n != nil {
		return n
	}
	return s.objects.atLeast(class) // to be cut up: in small segments there is nothing else
}

func (s *slab) insert(n *Node) {
	if isObject(n.size) {
		s.objects.insert(n)
	} else {
		s.tlsf.insert(n)
	}
}

func (s *slab) remove(n *Node) {
	if isObject(n.size) {
		s.objects.remove(n)
	} else {
		s.tlsf.remove(n)
	}
}

func (s *slab) visit(min int64, f func(n *Node)) {
	s.tlsf.visit(min, f)
	s.objects.visit(min, f)
}

// cut leaves one slab of a larger block, whole objects of a slab, and then takes
// the last object off until one is left.
func (s *slab) cut(n *Node, size int64) int64 {
	if size > slabMax {
		return size
	}
	bytes := classBytes(classFor(size))
	switch {
	case n.size <= bytes:
		return n.size
	case n.size > slabObjects*bytes:
		return slabObjects * bytes
	case n.size%bytes != 0:
		return n.size / bytes * bytes
	}
	return n.size - bytes
}

func (s *slab) joins(left, right *Node) bool { return !isObject(left.size) && !isObject(right.size) }

func (s *slab) lazy() bool { return true }

func (s *slab) rangeSize(bytes int64) int64 {
	if bytes > slabMax {
		return bytes
	}
	return classBytes(classFor(bytes))
}

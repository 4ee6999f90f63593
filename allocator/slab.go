package allocator

// slab cuts small sizes from slabs, each carved at once into objects of one size
// class, as in Bonwick (The slab allocator, 1994). Free objects are kept apart
// until memory is short; then they join, whatever slab they came from. Larger
// blocks are left to a tlsf.
type slab struct {
	tlsf
	objects [slabClasses]list
}

const (
	slabMax     = 32 << 10 // bytes of the largest object
	slabObjects = 64       // in a new slab
	slabClasses = (15-8-classStepBits+1)*classSteps + 1
)

// isObject says whether a block of size bytes can serve as an object.
func isObject(size int64) bool {
	return size <= slabMax && classBytes(classAtMost(size)) == size
}

func (s *slab) find(size int64) *node {
	if size > slabMax {
		return s.tlsf.find(size)
	}
	class := classFor(size)
	if n := s.objects[class].first; n != nil {
		return n
	}
	bytes := classBytes(class)
	if n := s.tlsf.find(slabObjects * bytes); n != nil {
		return n
	}
	return s.tlsf.find(bytes)
}

func (s *slab) insert(n *node) {
	if isObject(n.size) {
		s.objects[classAtMost(n.size)].insertAfter(nil, n)
		return
	}
	s.tlsf.insert(n)
}

func (s *slab) remove(n *node) {
	if isObject(n.size) {
		s.objects[classAtMost(n.size)].remove(n)
		return
	}
	s.tlsf.remove(n)
}

// cut leaves one slab of a larger block, whole objects of a slab, and then takes
// the last object off until one is left.
func (s *slab) cut(n *node, size int64) int64 {
	if size > slabMax {
		return size
	}
	bytes := classBytes(classFor(size))
	switch {
	case n.size > slabObjects*bytes:
		return slabObjects * bytes
	case n.size%bytes != 0:
		return n.size / bytes * bytes
	case n.size > bytes:
		return n.size - bytes
	}
	return bytes
}

func (s *slab) joins(left, right *node) bool { return !isObject(left.size) && !isObject(right.size) }

func (s *slab) lazy() bool { return true }

func (s *slab) segmentSize(bytes int64) int64 {
	if bytes > slabMax {
		return bytes
	}
	return classBytes(classFor(bytes))
}

// Tensor maps, which give TMA the address, shape and tile of an array. The driver encodes them. They are
// cached, since training steps use the same addresses again.
#include "tma.cuh"

namespace gemm {

#if HAVE_TMA

namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode encoder() {
  static const Encode found = [] {
    Encode f;
    driver_function(f, "cuTensorMapEncodeTiled", 12000);
    return f;
  }();
  return found;
}

constexpr int MAX_RANK = 3;

// A Key is everything that a tensor map depends on.
struct Key {
  const void *array;
  int64_t format, rank, counts[MAX_RANK], strides[MAX_RANK], tiles[MAX_RANK];  // 0 past rank
};

uint64_t hash(const Key &key) {
  uint64_t words[sizeof key / 8], h = 0;
  memcpy(words, &key, sizeof words);
  for (uint64_t w : words) h = (h ^ w) * 0x9E3779B97F4A7C15u, h ^= h >> 29;
  return h;
}

// The cache is direct-mapped: a new key replaces the one that has its entry.
struct Entry {
  Key key;
  TensorMap map;
};
constexpr int ENTRIES = 1024;
std::mutex lock;
Entry entries[ENTRIES];

int encode(TensorMap &map, const Key &key) {
  // cudaSetDevice gives this thread a context, which the driver needs.
  static thread_local const int ready = done(cudaSetDevice(0));
  if (ready != cudaSuccess) return ready;
  cuuint64_t counts[MAX_RANK], strides[MAX_RANK];
  cuuint32_t tile[MAX_RANK], steps[MAX_RANK];
  TileFormat format = TileFormat(key.format);
  bool plain = format == TileFormat::PLAIN || format == TileFormat::PLAIN_BF16;
  bool half = format == TileFormat::PLAIN_BF16 || format == TileFormat::SWIZZLE_128B_BF16;
  for (int i = 0; i < key.rank; i++) counts[i] = key.counts[i], strides[i] = (half ? 2 : 4) * key.strides[i], tile[i] = key.tiles[i], steps[i] = 1;
  auto type = half                                      ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
              : format == TileFormat::SWIZZLE_128B_TF32 ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
                                                        : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  CUresult code = encoder()(&map, type, key.rank, const_cast<void *>(key.array), counts, strides + 1, tile, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            plain ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return code;  // the runtime's errors have the driver's numbers
}

}  // namespace

bool tma_possible() { return device().major == 9 && device().capability / 10 == 9 && encoder(); }

int encode(TensorMap &map, const void *array, const Dimension *d, int rank, TileFormat format) {
  if (rank < 1 || rank > MAX_RANK) return cudaErrorInvalidValue;
  Key key = {};
  key.array = array, key.format = int64_t(format), key.rank = rank;
  for (int i = 0; i < rank; i++) key.counts[i] = d[i].count, key.strides[i] = d[i].stride, key.tiles[i] = d[i].tile;
  Entry &entry = entries[hash(key) % ENTRIES];
  {
    std::lock_guard<std::mutex> held(lock);
    if (memcmp(&entry.key, &key, sizeof key) == 0) return map = entry.map, cudaSuccess;
  }
  if (int code = encode(map, key)) return code;
  std::lock_guard<std::mutex> held(lock);
  entry.key = key, entry.map = map;
  return cudaSuccess;
}

#else

bool tma_possible() { return false; }

int encode(TensorMap &, const void *, const Dimension *, int, TileFormat) { return cudaErrorNotSupported; }

#endif

}  // namespace gemm

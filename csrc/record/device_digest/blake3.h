// BLAKE3-256 in the shape that a card computes it: one thread a chunk, one block of threads a group of 128 chunks, and
// the groups' tree above. One source for nvcc, NVRTC and the host's compiler, hence no header of the standard library.
//
//   Shapes   any number of bytes; a tensor's logical bytes are dense or gathered over at most 8 runs of dimensions
//   Order    BLAKE3's tree: neighbours are joined level by level, an odd last one goes up as it is; this is the
//            specification's "left subtree is the largest power of two" [spec BLAKE3 2.1, 2.4]
//   Source   [spec github.com/BLAKE3-team/BLAKE3-specs, blake3.pdf, 2020]
//   Evidence tests/device_digest: equal to the upstream C on the host, and the compiled kernels executed for sm_75 to sm_90
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define SO_DIGEST_FN __host__ __device__ __forceinline__
#define SO_DIGEST_UNROLL _Pragma("unroll")
#define SO_DIGEST_LOOP _Pragma("unroll 1")
#else
#define SO_DIGEST_FN inline
#define SO_DIGEST_UNROLL
#define SO_DIGEST_LOOP
#endif

namespace step_oracle::device_digest {

using U8 = unsigned char;
using U16 = unsigned short;
using U32 = unsigned int;
using U64 = unsigned long long;
using I64 = long long;
static_assert(sizeof(U32) == 4 && sizeof(U64) == 8);

inline constexpr U32 kChunk = 1024, kBlock = 64;  // bytes [spec BLAKE3 2.1]
inline constexpr U32 kGroup = 128;                // chunks that one block of threads joins: 128 KiB
inline constexpr U32 kThreads = 128;
inline constexpr U32 kMostDims = 8;
inline constexpr U32 kMostItems = 22;  // a Batch fits a kernel's 4 KiB of parameters

enum Flag : U32 { kChunkStart = 1, kChunkEnd = 2, kParent = 4, kRoot = 8 };  // [spec BLAKE3 table 3]

// How a chunk's bytes are fetched.
enum Fetch : U32 {
  kVectors,  // dense, address a multiple of 16
  kWords,    // dense, address a multiple of 4
  kGather,   // anything else
};

// One tensor. Addresses and strides are in bytes.
struct Item {
  U64 data = 0;         // the first element
  U64 bytes = 0;        // logical
  U64 scratch = 0;      // its first group in the scratch: 32 bytes a group, as many again above
  U32 first_block = 0;  // of the batch's grid
  U32 fetch = kVectors;
  U32 itemsize = 1;
  U32 piece = 1;  // gather: bytes fetched at once: 1, 2 or 4; divides itemsize and every address
  U32 dims = 0;   // gather: 1 to kMostDims
  U32 output = 0; // index of its digest
  I64 sizes[kMostDims] = {};
  I64 strides[kMostDims] = {};
};

struct Batch {
  U64 scratch = 0;  // address; 64 bytes a group
  U64 output = 0;   // address; 32 bytes an item
  U32 count = 0;
  U32 one = 1;      // see add()
  Item items[kMostItems];
};
static_assert(sizeof(Batch) <= 4096);

SO_DIGEST_FN U64 chunks_of(U64 bytes) { return bytes == 0 ? 1 : (bytes + kChunk - 1) / kChunk; }
SO_DIGEST_FN U64 groups_of(U64 bytes) { return (chunks_of(bytes) + kGroup - 1) / kGroup; }

struct Cv {
  U32 w[8];
};

// [spec BLAKE3 table 1]: SHA-256's.
SO_DIGEST_FN Cv initial_cv() {
  return {{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

template <int kBits>
SO_DIGEST_FN U32 rotate(U32 x) {
  return x >> kBits | x << (32 - kBits);
}

// x + y by the multiply-add unit, which the rest of the work leaves idle: `one` is 1, and the compiler must not know.
SO_DIGEST_FN U32 add(U32 x, U32 y, [[maybe_unused]] U32 one) {
#ifdef __CUDA_ARCH__
  return x * one + y;
#else
  return x + y;
#endif
}

// The quarter round [spec BLAKE3 2.2].
SO_DIGEST_FN void mix(U32& a, U32& b, U32& c, U32& d, U32 x, U32 y, U32 one) {
  a = add(add(a, x, one), b, one);
  d = rotate<16>(d ^ a);
  c = add(c, d, one);
  b = rotate<12>(b ^ c);
  a = add(add(a, y, one), b, one);
  d = rotate<8>(d ^ a);
  c = add(c, d, one);
  b = rotate<7>(b ^ c);
}

// cv becomes the first half of the compression's output.
SO_DIGEST_FN void compress(Cv& cv, const U32 (&m)[16], U64 counter, U32 length, U32 flags, U32 one) {
  // The words in each round's order: the permutation applied 0 to 6 times [spec BLAKE3 table 2].
  constexpr U8 kOrder[7][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                {2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8},
                                {3, 4, 10, 12, 13, 2, 7, 14, 6, 5, 9, 0, 11, 15, 8, 1},
                                {10, 7, 12, 9, 14, 3, 13, 15, 4, 0, 11, 2, 5, 8, 1, 6},
                                {12, 13, 9, 11, 15, 10, 14, 8, 7, 2, 5, 3, 0, 1, 6, 4},
                                {9, 14, 11, 5, 8, 12, 15, 1, 13, 3, 0, 10, 2, 6, 4, 7},
                                {11, 15, 5, 0, 1, 9, 8, 6, 14, 10, 2, 12, 3, 4, 7, 13}};
  const Cv iv = initial_cv();
  U32 v[16] = {cv.w[0], cv.w[1], cv.w[2], cv.w[3], cv.w[4], cv.w[5], cv.w[6], cv.w[7], iv.w[0], iv.w[1], iv.w[2],
               iv.w[3], static_cast<U32>(counter), static_cast<U32>(counter >> 32), length, flags};
  SO_DIGEST_UNROLL
  for (int r = 0; r < 7; ++r) {
    const auto& o = kOrder[r];
    mix(v[0], v[4], v[8], v[12], m[o[0]], m[o[1]], one);
    mix(v[1], v[5], v[9], v[13], m[o[2]], m[o[3]], one);
    mix(v[2], v[6], v[10], v[14], m[o[4]], m[o[5]], one);
    mix(v[3], v[7], v[11], v[15], m[o[6]], m[o[7]], one);
    mix(v[0], v[5], v[10], v[15], m[o[8]], m[o[9]], one);
    mix(v[1], v[6], v[11], v[12], m[o[10]], m[o[11]], one);
    mix(v[2], v[7], v[8], v[13], m[o[12]], m[o[13]], one);
    mix(v[3], v[4], v[9], v[14], m[o[14]], m[o[15]], one);
  }
  SO_DIGEST_UNROLL
  for (int i = 0; i < 8; ++i) cv.w[i] = v[i] ^ v[i + 8];
}

SO_DIGEST_FN Cv parent(const Cv& left, const Cv& right, bool root, U32 one) {
  U32 m[16];
  SO_DIGEST_UNROLL
  for (int i = 0; i < 8; ++i) {
    m[i] = left.w[i];
    m[i + 8] = right.w[i];
  }
  Cv cv = initial_cv();
  compress(cv, m, 0, kBlock, kParent | (root ? kRoot : 0u), one);
  return cv;
}

template <class T>
SO_DIGEST_FN const T* at(U64 address) {
  return reinterpret_cast<const T*>(static_cast<decltype(sizeof(0))>(address));
}

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
using Vector = uint4;
#else
struct Vector {
  U32 x, y, z, w;
};
#endif

// A read of memory that nobody writes meanwhile.
template <class T>
SO_DIGEST_FN T fetch(U64 address) {
#ifdef __CUDA_ARCH__
  return __ldg(at<T>(address));
#else
  return *at<T>(address);
#endif
}

// Where a gather stands: walks the innermost dimension, and finds its row anew at the end of one.
struct Cursor {
  U64 address, element;
  I64 column;
  U32 part;  // piece of the element

  SO_DIGEST_FN void seek(const Item& t, U64 e) {
    const U32 last = t.dims - 1;
    U64 row = e / static_cast<U64>(t.sizes[last]);
    element = e;
    column = static_cast<I64>(e - row * static_cast<U64>(t.sizes[last]));
    address = t.data + static_cast<U64>(column * t.strides[last]);
    SO_DIGEST_LOOP
    for (U32 d = last; d-- > 0;) {
      const U64 up = row / static_cast<U64>(t.sizes[d]);
      address += static_cast<U64>(static_cast<I64>(row - up * static_cast<U64>(t.sizes[d])) * t.strides[d]);
      row = up;
    }
  }
  // The piece here; then the cursor stands at the next one, unless this was the tensor's last.
  SO_DIGEST_FN U32 take(const Item& t) {
    const U64 a = address + part;
    const U32 value = t.piece == 4 ? fetch<U32>(a) : t.piece == 2 ? fetch<U16>(a) : fetch<U8>(a);
    part += t.piece;
    if (part == t.itemsize) {
      part = 0;
      ++element;
      address += static_cast<U64>(t.strides[t.dims - 1]);
      if (++column == t.sizes[t.dims - 1] && element * t.itemsize < t.bytes) seek(t, element);
    }
    return value;
  }
};

// The words of a whole dense block.
SO_DIGEST_FN void dense_block(U32 (&m)[16], U64 address, bool vectors) {
  if (vectors) {
    SO_DIGEST_UNROLL
    for (U32 i = 0; i < 4; ++i) {
      const Vector v = fetch<Vector>(address + 16 * i);
      m[4 * i] = v.x;
      m[4 * i + 1] = v.y;
      m[4 * i + 2] = v.z;
      m[4 * i + 3] = v.w;
    }
  } else {
    SO_DIGEST_UNROLL
    for (U32 i = 0; i < 16; ++i) m[i] = fetch<U32>(address + 4 * i);
  }
}

// The words of any block of `length` bytes, zeros behind them. Leaves the cursor where the next block begins.
SO_DIGEST_FN void slow_block(U32 (&m)[16], const Item& t, U64 address, U32 length, Cursor& cursor) {
  U32 words[16];  // in local memory: this path is as slow as its reads
  U32 left = length;
  SO_DIGEST_LOOP
  for (U32 i = 0; i < 16; ++i) {
    U32 w = 0;
    const U32 piece = t.fetch == kGather ? t.piece : 1;
    SO_DIGEST_LOOP
    for (U32 shift = 0; shift < 32 && left > 0; shift += 8 * piece, left -= piece)
      w |= (t.fetch == kGather ? cursor.take(t) : fetch<U8>(address + length - left)) << shift;
    words[i] = w;
  }
  SO_DIGEST_UNROLL
  for (U32 i = 0; i < 16; ++i) m[i] = words[i];
}

// The chaining value of one chunk; the digest where it is the only one.
SO_DIGEST_FN Cv chunk(const Item& t, U64 index, U32 one) {
  const U64 first = index * kChunk;
  U64 left = t.bytes - first < kChunk ? t.bytes - first : kChunk;
  const U32 blocks = left == 0 ? 1 : static_cast<U32>((left + kBlock - 1) / kBlock);
  const U32 root = t.bytes <= kChunk ? kRoot : 0u;
  Cv cv = initial_cv();
  Cursor cursor = {0, 0, 0, 0};
  if (t.fetch == kGather && left > 0) {
    cursor.seek(t, first / t.itemsize);
    cursor.part = static_cast<U32>(first % t.itemsize);
  }
  U64 address = t.data + first;
  for (U32 b = 0; b < blocks; ++b) {
    const U32 length = left < kBlock ? static_cast<U32>(left) : kBlock;
    U32 m[16];
    if (t.fetch == kGather || length < kBlock) {
      slow_block(m, t, address, length, cursor);
    } else {
      dense_block(m, address, t.fetch == kVectors);
    }
    compress(cv, m, index, length, (b == 0 ? kChunkStart : 0u) | (b + 1 == blocks ? kChunkEnd | root : 0u), one);
    address += kBlock;
    left -= length;
  }
  return cv;
}

}  // namespace step_oracle::device_digest

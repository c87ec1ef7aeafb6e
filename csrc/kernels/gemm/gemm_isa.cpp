// The fp32 chain, fast. A register tile of kTileRows x (kTileVecs * kLanes) outputs walks a panel of k; between panels
// the partial sums rest in D, which loses nothing: a float stored and loaded is the same float. Every output is one
// chain over k in ascending order in every path.
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/vec.h"
#include "csrc/kernels/gemm/gemm_body.h"

SO_ISA_BEGIN
namespace {

using Int = std::int64_t;

inline constexpr int kTileCols = kTileVecs * kLanes;
inline constexpr Int kPanelK = 384;  // a packed B panel of this depth stays in the first cache
inline constexpr Int kBlockRows = 288 / kTileRows * kTileRows;
inline constexpr Int kBlockCols = 768 / kTileCols * kTileCols;
inline constexpr Int kRowPitch = kPanelK + 16;  // not a power of two: rows fall into different cache sets

SO_ALWAYS_INLINE Int smaller(Int a, Int b) { return a < b ? a : b; }

// A block of A, packed: by rows (k contiguous, pitch kRowPitch) or by columns (kTileRows values for each k).
enum class Packing { kRows, kColumns };

struct Tile {
  Int k;           // depth of this panel
  const float* a;  // packed A, first row of the tile
  const float* b;
  Int b_row;  // kTileCols where B is packed
  float* d;
  Int d_row;
  int cols;          // columns in use, 1 to kTileCols
  bool first, last;  // panels of k
  const gemm::Epilogue* epilogue;
  const float* c;  // element of C for the tile's first output
};

SO_ALWAYS_INLINE int lanes_of(int cols, int v) { return cols - v * kLanes; }

SO_ALWAYS_INLINE Vec load_some(const float* p, int n) {
  return n >= kLanes ? load(p) : n > 0 ? load_first(p, n) : zeros();
}
SO_ALWAYS_INLINE void store_some(float* p, Vec v, int n) {
  if (n >= kLanes)
    store(p, v);
  else if (n > 0)
    store_first(p, v, n);
}

inline Vec gather_c(const float* c, Int col, int n) {
  float lanes[kLanes] = {};
  for (int i = 0; i < n && i < kLanes; ++i) lanes[i] = c[i * col];
  return load(lanes);
}

SO_ALWAYS_INLINE Vec finish(const Tile& t, Vec acc, int row, int v) {
  const gemm::Epilogue& e = *t.epilogue;
  if (e.beta != 0.0f) {
    const float* c = t.c + row * e.c.row + v * kLanes * e.c.col;
    const int n = lanes_of(t.cols, v);
    const Vec source = e.c.col == 1 ? load_some(c, n) : gather_c(c, e.c.col, n);
    acc = fma(broadcast(e.alpha), acc, mul(broadcast(e.beta), source));
  } else if (e.alpha != 1.0f) {
    acc = mul(broadcast(e.alpha), acc);
  }
  return canonical(acc);
}

template <int kRows, Packing kPacking>
void run_tile(const Tile& t) {
  Vec acc[kRows][kTileVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kTileVecs; ++v)
      acc[i][v] = t.first ? zeros() : load_some(t.d + i * t.d_row + v * kLanes, lanes_of(t.cols, v));
  const float* a = t.a;
  const float* b = t.b;
  const Int depth = t.k, b_row = t.b_row;
#pragma GCC unroll 4
  for (Int q = 0; q < depth; ++q) {
    Vec row[kTileVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVecs; ++v) row[v] = load(b + v * kLanes);
    b += b_row;
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Vec x = broadcast(kPacking == Packing::kRows ? a[i * kRowPitch] : a[i]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVecs; ++v) acc[i][v] = fma(x, row[v], acc[i][v]);
    }
    a += kPacking == Packing::kRows ? 1 : kTileRows;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kTileVecs; ++v)
      store_some(t.d + i * t.d_row + v * kLanes, t.last ? finish(t, acc[i][v], i, v) : acc[i][v], lanes_of(t.cols, v));
}

template <Packing kPacking>
void run_rows(const Tile& t, Int rows) {
  switch (rows) {
#define SO_ROWS(r) \
  case r:          \
    return run_tile<(r <= kTileRows ? r : 1), kPacking>(t);
    SO_ROWS(1)
    SO_ROWS(2) SO_ROWS(3) SO_ROWS(4) SO_ROWS(5) SO_ROWS(6) SO_ROWS(7) SO_ROWS(8) SO_ROWS(9) SO_ROWS(10) SO_ROWS(11)
        SO_ROWS(12)
#undef SO_ROWS
            default : return;
  }
}

// Rows [0, rows) and k [0, depth) of A, from `from`.
void pack_a(Packing packing, const gemm::Matrix& a, const float* from, Int rows, Int depth, float* to) {
  for (Int i = 0; i < rows; i += kTileRows) {
    const Int n = smaller(kTileRows, rows - i);
    const float* tile = from + i * a.row;
    float* out = to + i * kRowPitch;
    if (packing == Packing::kColumns) {
      for (Int q = 0; q < depth; ++q) {
        if (n == kTileRows)
          std::memcpy(out + q * kTileRows, tile + q * a.col, kTileRows * sizeof(float));
        else
          for (Int r = 0; r < n; ++r) out[q * kTileRows + r] = tile[q * a.col + r];
      }
    } else {
      for (Int r = 0; r < n; ++r) {
        if (a.col == 1)
          std::memcpy(out + r * kRowPitch, tile + r * a.row, static_cast<std::size_t>(depth) * sizeof(float));
        else
          for (Int q = 0; q < depth; ++q) out[r * kRowPitch + q] = tile[r * a.row + q * a.col];
      }
    }
  }
}

// k [0, depth) and columns [0, cols), cols <= kTileCols, of B, from `from`; the columns beyond are zeros.
void pack_b(const gemm::Matrix& b, const float* from, Int depth, Int cols, float* to) {
  if (b.col == 1) {
    for (Int q = 0; q < depth; ++q)
#pragma GCC unroll 4
      for (int v = 0; v < kTileVecs; ++v)
        store(to + q * kTileCols + v * kLanes,
              load_some(from + q * b.row + v * kLanes, lanes_of(static_cast<int>(cols), v)));
    return;
  }
  Int j = 0;
  if (b.row == 1)
    for (; j + 8 <= cols; j += 8) {
      Int q = 0;
      for (; q + 8 <= depth; q += 8) transpose8x8(from + j * b.col + q, b.col, to + q * kTileCols + j, kTileCols);
      for (; q < depth; ++q)
        for (int r = 0; r < 8; ++r) to[q * kTileCols + j + r] = from[(j + r) * b.col + q];
    }
  for (; j < kTileCols; ++j)
    for (Int q = 0; q < depth; ++q) to[q * kTileCols + j] = j < cols ? from[q * b.row + j * b.col] : 0.0f;
}

struct Region {
  Int row_begin, row_end, col_begin, col_end;
};

// One panel of k for one block of columns: every row of the region.
void run_block(const gemm::Params& p, Int batch, const Region& r, Int k_begin, Int depth, const float* packed_b,
               float* packed_a) {
  const Packing packing = p.a.row == 1 && p.a.col != 1 ? Packing::kColumns : Packing::kRows;
  const gemm::Epilogue& e = p.epilogue;
  Tile t{};
  t.k = depth, t.d_row = p.d.row, t.first = k_begin == 0, t.last = k_begin + depth == p.k, t.epilogue = &e;
  for (Int i0 = r.row_begin; i0 < r.row_end; i0 += kBlockRows) {
    const Int rows = smaller(kBlockRows, r.row_end - i0);
    pack_a(packing, p.a, p.a.data + batch * p.a.batch + i0 * p.a.row + k_begin * p.a.col, rows, depth, packed_a);
    for (Int j = r.col_begin; j < r.col_end; j += kTileCols) {
      t.cols = static_cast<int>(smaller(kTileCols, r.col_end - j));
      t.b = packed_b + (j - r.col_begin) * kPanelK, t.b_row = kTileCols;
      for (Int i = 0; i < rows; i += kTileRows) {
        t.a = packed_a + i * kRowPitch;
        t.d = p.d.data + batch * p.d.batch + (i0 + i) * p.d.row + j;
        if (e.beta != 0.0f) t.c = e.c.data + batch * e.c.batch + (i0 + i) * e.c.row + j * e.c.col;
        const Int n = smaller(kTileRows, rows - i);
        if (packing == Packing::kRows)
          run_rows<Packing::kRows>(t, n);
        else
          run_rows<Packing::kColumns>(t, n);
      }
    }
  }
}

void fp32_chain(const gemm::Params& p, Int batch, Int row_begin, Int row_end, Int col_begin, Int col_end,
                float* workspace) {
  float* packed_b = workspace;
  float* packed_a = workspace + kBlockCols * kPanelK;
  for (Int j0 = col_begin; j0 < col_end; j0 += kBlockCols) {
    const Region r{row_begin, row_end, j0, smaller(j0 + kBlockCols, col_end)};
    Int k_begin = 0;
    do {  // once for k == 0: the epilogue of empty sums
      const Int depth = smaller(kPanelK, p.k - k_begin);
      for (Int j = r.col_begin; j < r.col_end; j += kTileCols)
        pack_b(p.b, p.b.data + batch * p.b.batch + k_begin * p.b.row + j * p.b.col, depth,
               smaller(kTileCols, r.col_end - j), packed_b + (j - j0) * kPanelK);
      run_block(p, batch, r, k_begin, depth, packed_b, packed_a);
      k_begin += depth;
    } while (k_begin < p.k);
  }
}

}  // namespace

extern const GemmBody gemm_body;
const GemmBody gemm_body = {kTileRows, kTileCols, kBlockCols* kPanelK + kBlockRows* kRowPitch, kPanelK, &fp32_chain};
SO_ISA_END

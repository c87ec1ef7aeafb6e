// The fp32 chain, fast. A register tile of kTileRows x (kTileVecs * kLanes) outputs walks a panel of k; between panels
// the partial sums rest in D, which loses nothing: a float stored and loaded is the same float. Every output is one
// chain over k in ascending order in every path.
#include "csrc/kernels/gemm/chain_tile.h"
#include "csrc/kernels/gemm/gemm_body.h"

SO_ISA_BEGIN
namespace {

using namespace chain_tile;

inline constexpr Int kBlockCols = 768 / kTileCols * kTileCols;

inline Vec gather_c(const float* c, Int col, int n) {
  float lanes[kLanes] = {};
  for (int i = 0; i < n && i < kLanes; ++i) lanes[i] = c[i * col];
  return load(lanes);
}

// The epilogue of one tile; before the last panel of k, the sums as they are.
struct Finish {
  const gemm::Epilogue& e;
  const float* c;  // element of C for the tile's first output
  int cols;
  bool last;

  SO_ALWAYS_INLINE Vec operator()(Vec acc, int row, int v) const {
    if (!last) return acc;
    if (e.beta != 0.0f) {
      const float* source = c + row * e.c.row + v * kLanes * e.c.col;
      const int n = lanes_of(cols, v);
      const Vec added = e.c.col == 1 ? load_some(source, n) : gather_c(source, e.c.col, n);
      acc = fma(broadcast(e.alpha), acc, mul(broadcast(e.beta), added));
    } else if (e.alpha != 1.0f) {
      acc = mul(broadcast(e.alpha), acc);
    }
    return canonical(acc);
  }
};

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
  const bool last = k_begin + depth == p.k;
  Tile t{};
  t.k = depth, t.d_row = p.d.row, t.first = k_begin == 0;
  for (Int i0 = r.row_begin; i0 < r.row_end; i0 += kBlockRows) {
    const Int rows = smaller(kBlockRows, r.row_end - i0);
    pack_a(packing, p.a, p.a.data + batch * p.a.batch + i0 * p.a.row + k_begin * p.a.col, rows, depth, packed_a);
    for (Int j = r.col_begin; j < r.col_end; j += kTileCols) {
      t.cols = static_cast<int>(smaller(kTileCols, r.col_end - j));
      t.b = packed_b + (j - r.col_begin) * kPanelK;
      for (Int i = 0; i < rows; i += kTileRows) {
        t.a = packed_a + i * kRowPitch;
        t.d = p.d.data + batch * p.d.batch + (i0 + i) * p.d.row + j;
        const float* c = e.beta == 0.0f ? nullptr : e.c.data + batch * e.c.batch + (i0 + i) * e.c.row + j * e.c.col;
        const Finish finish{e, c, t.cols, last};
        const Int n = smaller(kTileRows, rows - i);
        if (packing == Packing::kRows)
          run_rows<Packing::kRows>(t, n, finish);
        else
          run_rows<Packing::kColumns>(t, n, finish);
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

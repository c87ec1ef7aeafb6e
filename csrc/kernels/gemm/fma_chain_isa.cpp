// Products of narrow factors on the CUDA cores: panels of the factors, widened to float32 as they are packed, through
// the tiles of chain_tile.h. Widening is exact, and so nothing rounds but each fma.
#include "csrc/kernels/arith/convert.h"
#include "csrc/kernels/gemm/chain_tile.h"
#include "csrc/kernels/gemm/tensor_core_body.h"

SO_ISA_BEGIN
namespace {

using namespace chain_tile;
using gemm::TensorCoreParams;

struct FromFloat {
  using Storage = float;
  static float read(float x) { return x; }
};
struct FromBf16 {
  using Storage = std::uint16_t;
  static float read(Storage x) { return convert::from_bf16(x); }
};
struct FromFp16 {
  using Storage = std::uint16_t;
  static float read(Storage x) { return convert::from_fp16(x); }
};

static_assert(kRegionCols % kTileCols == 0);

struct Workspace {
  float b[kRegionCols * kPanelK];
  float a[kBlockRows * kRowPitch];
  float lines[8][kRowPitch];
};

template <class From>
SO_ALWAYS_INLINE void widen(const typename From::Storage* from, Int step, Int n, float* to) {
  if (step == 1)
    for (Int i = 0; i < n; ++i) to[i] = From::read(from[i]);
  else
    for (Int i = 0; i < n; ++i) to[i] = From::read(from[i * step]);
}

// Rows [0, rows) and k [0, depth) of A, from `from`.
template <class From>
void pack_a(Packing packing, const gemm::Strides& a, const typename From::Storage* from, Int rows, Int depth,
            float* to) {
  for (Int i = 0; i < rows; i += kTileRows) {
    const Int n = smaller(kTileRows, rows - i);
    const typename From::Storage* tile = from + i * a.row;
    float* out = to + i * kRowPitch;
    if (packing == Packing::kRows)
      for (Int r = 0; r < n; ++r) widen<From>(tile + r * a.row, a.col, depth, out + r * kRowPitch);
    else if (n == kTileRows)
      for (Int q = 0; q < depth; ++q) widen<From>(tile + q * a.col, 1, kTileRows, out + q * kTileRows);
    else
      for (Int q = 0; q < depth; ++q) widen<From>(tile + q * a.col, 1, n, out + q * kTileRows);
  }
}

// k [0, depth) and columns [0, cols), cols <= kTileCols, of B, from `from`; the columns beyond are zeros.
template <class From>
void pack_b(const gemm::Strides& b, const typename From::Storage* from, Int depth, Int cols, float* to,
            float (*lines)[kRowPitch]) {
  if (cols < kTileCols) std::memset(to, 0, static_cast<std::size_t>(depth * kTileCols) * sizeof(float));
  if (b.col == 1 && cols == kTileCols) {
    for (Int q = 0; q < depth; ++q) widen<From>(from + q * b.row, 1, kTileCols, to + q * kTileCols);
    return;
  }
  Int j = 0;
  if (b.row == 1)
    for (; j + 8 <= cols; j += 8) {
      for (int r = 0; r < 8; ++r) widen<From>(from + (j + r) * b.col, 1, depth, lines[r]);
      Int q = 0;
      for (; q + 8 <= depth; q += 8) transpose8x8(lines[0] + q, kRowPitch, to + q * kTileCols + j, kTileCols);
      for (; q < depth; ++q)
        for (int r = 0; r < 8; ++r) to[q * kTileCols + j + r] = lines[r][q];
    }
  for (; j < cols; ++j)
    for (Int q = 0; q < depth; ++q) to[q * kTileCols + j] = From::read(from[q * b.row + j * b.col]);
}

// One panel of k: every output of the region.
void run_panel(Packing packing, const float* packed_a, const float* packed_b, Int rows, Int cols, Tile t) {
  const auto as_it_is = [](Vec sums, int, int) { return sums; };
  float* const acc = t.d;
  for (Int j = 0; j < cols; j += kTileCols) {
    t.cols = static_cast<int>(smaller(kTileCols, cols - j)), t.b = packed_b + j * kPanelK;
    for (Int i = 0; i < rows; i += kTileRows) {
      t.a = packed_a + i * kRowPitch, t.d = acc + i * t.d_row + j;
      const Int n = smaller(kTileRows, rows - i);
      if (packing == Packing::kRows)
        run_rows<Packing::kRows>(t, n, as_it_is);
      else
        run_rows<Packing::kColumns>(t, n, as_it_is);
    }
  }
}

template <class From>
void accumulate(const TensorCoreParams& p, Int batch, const Region& g, float* acc, Int acc_pitch, Workspace& w) {
  const Int rows = g.row_end - g.row_begin, cols = g.col_end - g.col_begin;
  const gemm::Strides &sa = p.a_strides, &sb = p.b_strides;
  const auto* a = static_cast<const typename From::Storage*>(p.a) + batch * sa.batch + g.row_begin * sa.row;
  const auto* b = static_cast<const typename From::Storage*>(p.b) + batch * sb.batch + g.col_begin * sb.col;
  const Packing packing = sa.row == 1 && sa.col != 1 ? Packing::kColumns : Packing::kRows;
  Int k_begin = 0;
  do {  // once for k == 0: empty sums
    const Int depth = smaller(kPanelK, p.k - k_begin);
    for (Int j = 0; j < cols; j += kTileCols)
      pack_b<From>(sb, b + k_begin * sb.row + j * sb.col, depth, smaller(kTileCols, cols - j), w.b + j * kPanelK,
                   w.lines);
    for (Int i = 0; i < rows; i += kBlockRows) {
      const Int n = smaller(kBlockRows, rows - i);
      pack_a<From>(packing, sa, a + i * sa.row + k_begin * sa.col, n, depth, w.a);
      Tile t{};
      t.k = depth, t.d = acc + i * acc_pitch, t.d_row = acc_pitch, t.first = k_begin == 0;
      run_panel(packing, w.a, w.b, n, cols, t);
    }
    k_begin += depth;
  } while (k_begin < p.k);
}

void accumulate_any(const TensorCoreParams& p, Int batch, const Region& g, float* acc, Int acc_pitch,
                    void* workspace) {
  Workspace& w = *static_cast<Workspace*>(workspace);
  switch (p.factors) {
    case DType::kBF16:
      return accumulate<FromBf16>(p, batch, g, acc, acc_pitch, w);
    case DType::kF16:
      return accumulate<FromFp16>(p, batch, g, acc, acc_pitch, w);
    default:
      return accumulate<FromFloat>(p, batch, g, acc, acc_pitch, w);
  }
}

}  // namespace

extern const FmaChainBody fma_chain_body;
const FmaChainBody fma_chain_body = {kTileCols, sizeof(Workspace), &accumulate_any};
SO_ISA_END

// A register tile of the fp32 chain: kTileRows x kTileCols outputs over a panel of k, packed. Every output is one fma a
// position of k, ascending; between panels the partial sums rest in memory, which loses nothing.
#pragma once
#include <cstdint>

#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/vec.h"

SO_ISA_BEGIN
namespace chain_tile {

using Int = std::int64_t;

inline constexpr int kTileCols = kTileVecs * kLanes;
inline constexpr Int kPanelK = 384;  // a packed B panel of this depth stays in the first cache
inline constexpr Int kBlockRows = 288 / kTileRows * kTileRows;  // of A, packed at once
inline constexpr Int kRowPitch = kPanelK + 16;  // not a power of two: rows fall into different cache sets

// A block of A, packed: by rows (k contiguous, pitch kRowPitch) or by columns (kTileRows values for each k).
enum class Packing { kRows, kColumns };

struct Tile {
  Int k;           // depth of this panel
  const float* a;  // packed A, first row of the tile
  const float* b;  // packed B: kTileCols values for each k
  float* d;
  Int d_row;
  int cols;    // columns in use, 1 to kTileCols
  bool first;  // panel of k: from +0; else D holds the sums so far
};

SO_ALWAYS_INLINE Int smaller(Int a, Int b) { return a < b ? a : b; }
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

// finish(sums, row, vector): what is stored for them.
template <int kRows, Packing kPacking, class Finish>
void run_tile(const Tile& t, Finish finish) {
  Vec acc[kRows][kTileVecs];
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int v = 0; v < kTileVecs; ++v)
      acc[i][v] = t.first ? zeros() : load_some(t.d + i * t.d_row + v * kLanes, lanes_of(t.cols, v));
  const float* a = t.a;
  const float* b = t.b;
  const Int depth = t.k;
#pragma GCC unroll 4
  for (Int q = 0; q < depth; ++q) {
    Vec row[kTileVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVecs; ++v) row[v] = load(b + v * kLanes);
    b += kTileCols;
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
      store_some(t.d + i * t.d_row + v * kLanes, finish(acc[i][v], i, v), lanes_of(t.cols, v));
}

// rows: 1 to kTileRows.
template <Packing kPacking, class Finish>
void run_rows(const Tile& t, Int rows, Finish finish) {
  switch (rows) {
#define SO_ROWS(r) \
  case r:          \
    return run_tile<(r <= kTileRows ? r : 1), kPacking>(t, finish);
    SO_ROWS(1)
    SO_ROWS(2) SO_ROWS(3) SO_ROWS(4) SO_ROWS(5) SO_ROWS(6) SO_ROWS(7) SO_ROWS(8) SO_ROWS(9) SO_ROWS(10) SO_ROWS(11)
        SO_ROWS(12)
#undef SO_ROWS
            default : return;
  }
}

}  // namespace chain_tile
SO_ISA_END

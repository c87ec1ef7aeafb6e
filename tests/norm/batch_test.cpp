// Batch norm: the definition and the bodies give the compiled kernels' bytes, and the bodies the definition's.
#include "csrc/kernels/norm/batch.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/arith/element.h"
#include "csrc/kernels/arith/libdevice.h"
#include "csrc/kernels/core/bits.h"
#include "csrc/kernels/core/error.h"
#include "tests/support/same_bytes.h"
#include "tests/support/vectors.h"

namespace step_oracle {
namespace {

using norm::BatchLayout;
using norm::BatchShape;
using Bytes = std::vector<std::uint8_t>;

void both(const std::function<void(bool)>& body) {
  body(true);
  test::for_each_isa_and_threads([&] { body(false); });
}
void same(const test::Array& want, const Bytes& got, const std::string& what) {
  ASSERT_EQ(want.bytes.size(), got.size()) << what;
  EXPECT_SAME_BYTES(want.bytes.data(), got.data(), static_cast<std::int64_t>(got.size())) << what;
}

// The name says the types: batch_norm_last_bwd_f16_mixed.37x5: float16 with float32 parameters.
struct Case {
  test::VectorFile file;
  BatchShape shape;
  bool rows = false, train = true;
  BatchLayout layout() const {
    return rows ? BatchLayout{shape.places * shape.channels, 1, shape.channels}
                : BatchLayout{shape.channels * shape.places, shape.places, 1};
  }
  // Of the multi-block cases the statistics are outputs, and others are given.
  const char* given(const char* name, const char* other) const {
    return file.arrays.count(std::string("in_") + name) ? name : other;
  }
  const void* in(const char* name) const { return file.in(name).bytes.data(); }
  const float* floats(const char* name) const { return file.in(name).as<float>(); }
  Bytes room(const char* name) const { return Bytes(file.out(name, "sm_90").bytes.size()); }
  void check(const char* name, const Bytes& got) const { same(file.out(name, "sm_90"), got, file.name + " " + name); }
};
Case case_of(const std::string& name, bool parameters_are_float = false) {
  Case c{test::load_vectors(name), {}};
  const auto stem = name.substr(0, name.find('.'));
  const auto has = [&](const char* part) { return stem.find(part) != std::string::npos; };
  c.shape.type = has("_bf16") ? DType::kBF16 : has("_f16") ? DType::kF16 : DType::kF32;
  c.shape.parameters = has("_mixed") || parameters_are_float ? DType::kF32 : c.shape.type;
  long a = 0, b = 0, places = 0;
  int train = 1;
  const auto text = c.file.meta.at("shape").get<std::string>();
  if (std::sscanf(text.c_str(), "%ldx%ldx%ld:%d", &a, &b, &places, &train) >= 3) {
    c.shape.n = a;
    c.shape.channels = b;
    c.shape.places = places;
    c.train = train;
  } else {
    c.rows = true;
    c.shape.n = 1;
    c.shape.channels = b;
    c.shape.places = a;
  }
  return c;
}
// Their first parameters were float32 before mixed cases had names.
std::vector<Case> cases(std::initializer_list<const char*> prefixes) {
  std::vector<Case> out;
  for (const std::string prefix : prefixes)
    for (const auto& name : test::vector_names(prefix))
      out.push_back(case_of(name, prefix == "batch_norm_bf16." || prefix == "batch_norm_bwd_bf16."));
  return out;
}
float* floats(Bytes& b) { return reinterpret_cast<float*>(b.data()); }

TEST(BatchNormVectors, Forward) {
  int files = 0;
  for (const Case& c : cases({"batch_norm_f32.", "batch_norm_bf16.", "batch_norm_pure_bf16.", "batch_norm_pure_f16.",
                              "batch_norm_last_f32.", "batch_norm_last_bf16.", "batch_norm_last_bf16_mixed.",
                              "batch_norm_last_f16.", "batch_norm_last_f16_mixed.", "batch_norm_blocks_"})) {
    both([&](bool ref) {
      Bytes mean = c.room("mean"), var = c.room("var");
      const norm::BatchStatistics s{c.shape, c.rows, c.layout(), c.in("x"), floats(mean), floats(var)};
      ref ? norm::ref::batch_statistics(s) : norm::batch_statistics(s);
      c.check("mean", mean);
      c.check("var", var);
      if (c.file.arrays.count("out_y") == 0) return;
      Bytes y = c.room("y");
      const norm::BatchForward f{
          c.shape,       c.layout(),   c.layout(), c.in("x"), c.floats("given_mean"), c.floats("given_invstd"),
          c.in("gamma"), c.in("beta"), y.data()};
      ref ? norm::ref::batch_forward(f) : norm::batch_forward(f);
      c.check("y", y);
    });
    ++files;
  }
  EXPECT_EQ(files, 23);
  std::printf("%d golden files\n", files);
}

TEST(BatchNormVectors, FusedBackward) {
  int files = 0;
  for (const Case& c : cases({"batch_norm_bwd_f32.", "batch_norm_bwd_bf16.", "batch_norm_pure_bwd_bf16.",
                              "batch_norm_pure_bwd_f16.", "batch_norm_pure_bwd_f16_mixed."})) {
    both([&](bool ref) {
      Bytes dx = c.room("dx"), dgamma = c.room("dgamma"), dbeta = c.room("dbeta");
      const BatchLayout l = c.layout();
      const norm::BatchBackward p{c.shape,
                                  l,
                                  l,
                                  l,
                                  c.train,
                                  1e-5,
                                  c.in("x"),
                                  c.in("dy"),
                                  c.floats("mean"),
                                  c.floats("invstd"),
                                  c.in("running_mean"),
                                  c.in("running_var"),
                                  c.in("gamma"),
                                  dx.data(),
                                  dgamma.data(),
                                  dbeta.data()};
      ref ? norm::ref::batch_backward(p) : norm::batch_backward(p);
      c.check("dx", dx);
      c.check("dgamma", dgamma);
      c.check("dbeta", dbeta);
    });
    ++files;
  }
  EXPECT_EQ(files, 12);
  std::printf("%d golden files\n", files);
}

TEST(BatchNormVectors, SumsAndInputGradient) {
  int files = 0;
  const auto all = cases({"batch_norm_last_bwd_", "batch_norm_reduce_", "batch_norm_elemt_bwd_", "batch_norm_blocks_"});
  for (const Case& c : all) {
    const bool has_sums = c.file.arrays.count("out_sum_dy") != 0, has_input = c.file.arrays.count("out_dx") != 0;
    both([&](bool ref) {
      Bytes dy(static_cast<std::size_t>(c.shape.channels) * 4), xmu(dy.size());
      if (has_sums) {
        Bytes dgamma = c.room("dgamma"), dbeta = c.room("dbeta");
        const norm::BatchSums p{c.shape,
                                c.rows,
                                c.layout(),
                                c.layout(),
                                c.in("x"),
                                c.in("dy"),
                                c.floats(c.given("mean", "given_mean")),
                                c.floats(c.given("invstd", "given_invstd")),
                                floats(dy),
                                floats(xmu),
                                dgamma.data(),
                                dbeta.data()};
        ref ? norm::ref::batch_sums(p) : norm::batch_sums(p);
        c.check("sum_dy", dy);
        c.check("sum_dy_xmu", xmu);
        c.check("dgamma", dgamma);
        c.check("dbeta", dbeta);
      } else {
        dy = c.file.in("sum_dy").bytes;
        xmu = c.file.in("sum_dy_xmu").bytes;
      }
      if (!has_input) return;
      Bytes dx = c.room("dx");
      const BatchLayout l = c.layout();
      const norm::BatchInput p{c.shape,
                               l,
                               l,
                               l,
                               static_cast<float>(1.0 / static_cast<double>(c.shape.count())),
                               c.in("x"),
                               c.in("dy"),
                               c.floats("mean"),
                               c.floats("invstd"),
                               c.in("gamma"),
                               floats(dy),
                               floats(xmu),
                               dx.data()};
      ref ? norm::ref::batch_input(p) : norm::batch_input(p);
      c.check("dx", dx);
    });
    ++files;
  }
  EXPECT_EQ(files, 15 + 10 + 5 + 2);
  std::printf("%d golden files\n", files);
}

TEST(BatchNormVectors, RunningStatistics) {
  int files = 0;
  for (const char* type : {"f32", "bf16", "f16"}) {
    const auto dtype = std::string(type) == "f32"    ? DType::kF32
                       : std::string(type) == "bf16" ? DType::kBF16
                                                     : DType::kF16;
    const auto file = test::load_vectors(std::string("batch_norm_update_") + type + ".300");
    both([&](bool ref) {
      Bytes mean = file.in("running_mean").bytes, var = file.in("running_var").bytes, invstd(4 * 300);
      norm::BatchUpdate p{dtype,
                          300,
                          77,
                          0.1,
                          1e-5,
                          file.in("mean").as<float>(),
                          file.in("var").as<float>(),
                          mean.data(),
                          var.data(),
                          floats(invstd)};
      ref ? norm::ref::batch_update(p) : norm::batch_update(p);
      same(file.out("new_mean", "sm_90"), mean, file.name);
      same(file.out("new_var", "sm_90"), var, file.name);
      same(file.out("invstd", "sm_90"), invstd, file.name);
      mean = file.in("running_mean").bytes;
      var = file.in("running_var").bytes;
      p.invstd = nullptr;
      ref ? norm::ref::batch_update(p) : norm::batch_update(p);
      same(file.out("plain_mean", "sm_90"), mean, file.name);
      same(file.out("plain_var", "sm_90"), var, file.name);
    });
    const auto inverse = test::load_vectors(std::string("batch_norm_invstd_") + type + ".1061");
    both([&](bool ref) {
      Bytes out(4 * 1061);
      (ref ? norm::ref::batch_invstd : norm::batch_invstd)(dtype, 1061, 1e-5, inverse.in("x").bytes.data(),
                                                           floats(out));
      same(inverse.out("out", "sm_90"), out, inverse.name);
    });
    files += 2;
  }
  std::printf("%d golden files\n", files);
}

// The maps of tensors without a common layout, an element a channel.
TEST(BatchNormVectors, Maps) {
  const auto y = test::load_vectors("bn_y_general_f32.1061"), eval = test::load_vectors("bn_dx_eval_f32.1061"),
             plain = test::load_vectors("bn_dx_eval_plain_f32.1061"), dx = test::load_vectors("bn_dx_general_f32.1061");
  const BatchShape s{DType::kF32, DType::kF32, 1, 1061, 1};
  const BatchLayout l{1061, 1, 1};
  const auto in = [](const test::VectorFile& f, const char* name) { return f.in(name).as<float>(); };
  both([&](bool ref) {
    Bytes out(4 * 1061);
    const norm::BatchForward f{s, l, l, in(y, "x"), in(y, "u"), in(y, "v"), in(y, "y"), in(y, "z"), out.data()};
    ref ? norm::ref::batch_forward(f) : norm::batch_forward(f);
    same(y.out("out", "sm_90"), out, y.name);
    norm::BatchInput p{s,       l,       l,         l, 0, nullptr, in(eval, "x"), nullptr, in(eval, "y"), in(eval, "z"),
                       nullptr, nullptr, out.data()};
    ref ? norm::ref::batch_input(p) : norm::batch_input(p);
    same(eval.out("out", "sm_90"), out, eval.name);
    p = {s, l, l, l, 0, nullptr, in(plain, "x"), nullptr, in(plain, "y"), nullptr, nullptr, nullptr, out.data()};
    ref ? norm::ref::batch_input(p) : norm::batch_input(p);
    same(plain.out("out", "sm_90"), out, plain.name);
    p = {s,
         l,
         l,
         l,
         static_cast<float>(1 / 77.),
         in(dx, "x"),
         in(dx, "dy"),
         in(dx, "mean"),
         in(dx, "invstd"),
         in(dx, "gamma"),
         in(dx, "sum_dy"),
         in(dx, "sum_dy_xmu"),
         out.data()};
    ref ? norm::ref::batch_input(p) : norm::batch_input(p);
    same(dx.out("out", "sm_90"), out, dx.name);
  });
}

// ---- mutants: a short twin of planes' statistics and sums, with one thing changed
enum class Mutant {
  kNone,
  kTreeOfHalves,
  kTwoRoundings,
  kMeanTwoRoundings,
  kOtherFactorFused,
  kReciprocal,
  kM2Joined,
  kProductKept,
  kTreeKept,
  kCount
};

struct Moments3 {
  float mean = 0, m2 = 0, n = 0;
};
Moments3 joined(const Moments3& a, const Moments3& b, Mutant m) {
  const float n = a.n + b.n, factor = 1.0f / std::max(1.0f, n), d = a.mean - b.mean, q = d * d * a.n * b.n;
  const float mean = m == Mutant::kMeanTwoRoundings   ? a.n * a.mean + b.n * b.mean
                     : m == Mutant::kOtherFactorFused ? fma(b.n, b.mean, a.n * a.mean)
                                                      : fma(a.n, a.mean, b.n * b.mean);
  const float m2 = m == Mutant::kM2Joined       ? fma(q, factor, a.m2 + b.m2)
                   : m == Mutant::kTwoRoundings ? a.m2 + (b.m2 + q * factor)
                                                : a.m2 + fma(q, factor, b.m2);
  return {mean * factor, m2, n};
}
// The fold of 512 threads' values, as a mutant or not.
template <class V, class Join>
V folded(std::vector<V> v, bool halves, Join join) {
  const auto warp = [&](V* lanes) {
    if (halves)
      for (int o = 16; o > 0; o /= 2)
        for (int i = 0; i < o; ++i) lanes[i] = join(lanes[i], lanes[i + o]);
    else
      for (int o = 1; o < 32; o *= 2)
        for (int i = 0; i < 32; i += 2 * o) lanes[i] = join(lanes[i], lanes[i + o]);
    return lanes[0];
  };
  std::vector<V> first(32);
  for (std::size_t w = 0; w < v.size() / 32; ++w) first[w] = warp(&v[32 * w]);
  return warp(first.data());
}
float value(const Case& c, const char* name, std::int64_t i) {
  return c.shape.type == DType::kF32    ? c.file.in(name).as<float>()[i]
         : c.shape.type == DType::kBF16 ? widen(c.file.in(name).as<Bf16>()[i])
                                        : widen(c.file.in(name).as<F16>()[i]);
}
template <class Visit>
void each_by_thread(const Case& c, std::int64_t channel, Visit visit) {
  std::int64_t width = 32;
  while (width < c.shape.places && width < 512) width *= 2;
  for (std::int64_t n = 0; n < c.shape.n; ++n)
    for (std::int64_t x = 0; x < c.shape.places; ++x)
      visit(static_cast<std::size_t>(n % (512 / width) * width + x % width),
            (n * c.shape.channels + channel) * c.shape.places + x);
}
bool statistics_noticed(const Case& c, Mutant m) {
  for (std::int64_t k = 0; k < c.shape.channels; ++k) {
    std::vector<Moments3> t(512);
    each_by_thread(c, k, [&](std::size_t i, std::int64_t at) {
      const float v = value(c, "x", at), d = v - t[i].mean;
      t[i].n += 1;
      t[i].mean = m == Mutant::kReciprocal ? fma(d, 1.0f / t[i].n, t[i].mean) : t[i].mean + d / t[i].n;
      t[i].m2 = fma(d, v - t[i].mean, t[i].m2);
    });
    const Moments3 all =
        folded(t, m == Mutant::kTreeOfHalves, [&](const Moments3& a, const Moments3& b) { return joined(a, b, m); });
    if (bits_of(all.mean) != c.file.out("mean", "sm_90").as<std::uint32_t>()[k]) return true;
    if (bits_of(all.m2 / all.n) != c.file.out("var", "sm_90").as<std::uint32_t>()[k]) return true;
  }
  return false;
}
bool sums_noticed(const Case& c, Mutant m) {
  const auto round = [&](float v) {
    return c.shape.type == DType::kBF16  ? widen(narrow<Bf16>(v))
           : c.shape.type == DType::kF16 ? widen(narrow<F16>(v))
                                         : v;
  };
  const bool wide = c.shape.type == DType::kF32;
  for (std::int64_t k = 0; k < c.shape.channels; ++k) {
    std::vector<float> t(512);
    const float mean = c.floats("mean")[k];
    each_by_thread(c, k, [&](std::size_t i, std::int64_t at) {
      const float g = value(c, "dy", at), d = value(c, "x", at) - mean;
      t[i] = m == Mutant::kProductKept ? (wide ? t[i] + g * d : fma(g, d, t[i]))
             : wide                    ? fma(g, d, t[i])
                                       : t[i] + round(g * d);
    });
    const float sum = folded(t, m != Mutant::kTreeOfHalves,
                             [&](float a, float b) { return a + (m == Mutant::kTreeKept ? b : round(b)); });
    const float dgamma = sum * c.floats("invstd")[k];
    const auto& want = c.file.out("dgamma", "sm_90");
    if (want.dtype == "U32" ? bits_of(dgamma) != want.as<std::uint32_t>()[k]
                            : narrow<Bf16>(dgamma).bits != want.as<std::uint16_t>()[k])
      return true;
  }
  return false;
}
TEST(BatchNormMutants, AreNoticed) {
  const auto forward = cases({"batch_norm_f32.", "batch_norm_bf16."});
  auto backward = cases({"batch_norm_bwd_f32.", "batch_norm_bwd_bf16."});
  std::erase_if(backward, [](const Case& c) { return !c.train; });
  for (const Case& c : forward) EXPECT_FALSE(statistics_noticed(c, Mutant::kNone)) << c.file.name;
  for (const Case& c : backward) EXPECT_FALSE(sums_noticed(c, Mutant::kNone)) << c.file.name;
  int killed = 0, mutants = 0;
  for (int i = 1; i < static_cast<int>(Mutant::kCount); ++i) {
    const auto m = static_cast<Mutant>(i);
    const bool of_sums = m == Mutant::kProductKept || m == Mutant::kTreeKept || m == Mutant::kTreeOfHalves,
               of_statistics = i <= static_cast<int>(Mutant::kM2Joined);
    for (const bool sums : {false, true}) {
      if (!(sums ? of_sums : of_statistics)) continue;
      bool noticed = false;
      for (const Case& c : sums ? backward : forward) noticed |= sums ? sums_noticed(c, m) : statistics_noticed(c, m);
      EXPECT_TRUE(noticed) << "mutant " << i << (sums ? " of the sums" : "");
      killed += noticed;
      ++mutants;
    }
  }
  std::printf("mutation score: %d of %d\n", killed, mutants);
}

// ---- body == definition
struct Drawn {
  std::mt19937 rng{11};
  std::normal_distribution<float> normal{0.3f, 1.0f};
  Bytes of(DType type, std::int64_t n, float scale = 1.0f, float shift = 0.0f) {
    Bytes out(static_cast<std::size_t>(n) * size_of(type));
    for (std::int64_t i = 0; i < n; ++i) {
      const float v = normal(rng) * scale + shift;
      type == DType::kF32    ? void(reinterpret_cast<float*>(out.data())[i] = v)
      : type == DType::kBF16 ? void(reinterpret_cast<Bf16*>(out.data())[i] = narrow<Bf16>(v))
                             : void(reinterpret_cast<F16*>(out.data())[i] = narrow<F16>(v));
    }
    return out;
  }
};

TEST(BatchNorm, BodyEqualsDefinition) {
  Drawn draw;
  int count = 0;
  for (const auto& [type, parameters] :
       {std::pair{DType::kF32, DType::kF32}, std::pair{DType::kBF16, DType::kF32}, std::pair{DType::kF16, DType::kF16}})
    for (const bool rows : {false, true})
      for (const auto& [n, channels, places] : {std::array{1, 1, 1}, std::array{3, 5, 1}, std::array{2, 17, 33},
                                                std::array{20, 3, 49}, std::array{1, 2, 1700}, std::array{34, 33, 33}})
        for (const int given : {0, 3}) {
          const BatchShape s{type, parameters, n, channels, places};
          const BatchLayout l =
              rows ? BatchLayout{channels * places, 1, channels} : BatchLayout{channels * places, places, 1};
          const std::int64_t all = std::int64_t{n} * channels * places;
          const Bytes x = draw.of(type, all), dy = draw.of(type, all), gamma = draw.of(parameters, channels),
                      beta = draw.of(parameters, channels), rm = draw.of(parameters, channels),
                      rv = draw.of(parameters, channels, 0.01f, 1.0f);
          const std::size_t c4 = static_cast<std::size_t>(channels) * 4, cp = rm.size();
          std::vector<Bytes> want, got;
          const auto run = [&](bool ref, std::vector<Bytes>& v) {
            v.assign({Bytes(c4), Bytes(c4), Bytes(c4), rm, rv, Bytes(x.size()), Bytes(x.size()), Bytes(cp), Bytes(cp),
                      Bytes(c4), Bytes(c4), Bytes(cp), Bytes(cp), Bytes(x.size()), Bytes(x.size()), Bytes(cp),
                      Bytes(cp)});
            const void *w = given ? gamma.data() : nullptr, *b = given ? beta.data() : nullptr;
            const norm::BatchStatistics a{s, rows, l, x.data(), floats(v[0]), floats(v[1])};
            ref ? norm::ref::batch_statistics(a) : norm::batch_statistics(a);
            const norm::BatchUpdate u{parameters,   channels,     s.count(),   0.1,         1e-5,
                                      floats(v[0]), floats(v[1]), v[3].data(), v[4].data(), floats(v[2])};
            ref ? norm::ref::batch_update(u) : norm::batch_update(u);
            const norm::BatchForward f{s, l, l, x.data(), floats(v[0]), floats(v[2]), w, b, v[5].data()};
            ref ? norm::ref::batch_forward(f) : norm::batch_forward(f);
            const norm::BatchSums q{s,
                                    rows,
                                    l,
                                    l,
                                    x.data(),
                                    dy.data(),
                                    floats(v[0]),
                                    floats(v[2]),
                                    floats(v[9]),
                                    floats(v[10]),
                                    v[11].data(),
                                    v[12].data()};
            ref ? norm::ref::batch_sums(q) : norm::batch_sums(q);
            const norm::BatchInput i{s,
                                     l,
                                     l,
                                     l,
                                     static_cast<float>(1.0 / static_cast<double>(s.count())),
                                     x.data(),
                                     dy.data(),
                                     floats(v[0]),
                                     floats(v[2]),
                                     w,
                                     floats(v[9]),
                                     floats(v[10]),
                                     v[13].data()};
            ref ? norm::ref::batch_input(i) : norm::batch_input(i);
            const norm::BatchInput e{s, l,       l,       l,           0, nullptr, dy.data(), nullptr, floats(v[2]),
                                     w, nullptr, nullptr, v[14].data()};
            ref ? norm::ref::batch_input(e) : norm::batch_input(e);
            for (const bool train : {true, false}) {
              const norm::BatchBackward p{s,
                                          l,
                                          l,
                                          l,
                                          train,
                                          1e-5,
                                          x.data(),
                                          dy.data(),
                                          floats(v[0]),
                                          floats(v[2]),
                                          rm.data(),
                                          rv.data(),
                                          w,
                                          v[6].data(),
                                          v[train ? 7 : 15].data(),
                                          v[train ? 8 : 16].data()};
              ref ? norm::ref::batch_backward(p) : norm::batch_backward(p);
            }
          };
          run(true, want);
          test::for_each_isa_and_threads([&] {
            run(false, got);
            for (std::size_t k = 0; k < want.size(); ++k)
              EXPECT_SAME_BYTES(want[k].data(), got[k].data(), static_cast<std::int64_t>(want[k].size()))
                  << name_of(type) << (rows ? " rows " : " planes ") << n << "x" << channels << "x" << places
                  << " part " << k;
          });
          ++count;
        }
  std::printf("%d cases\n", count);
  const BatchShape mixed{DType::kBF16, DType::kF16, 1, 1, 1};
  EXPECT_THROW(norm::batch_statistics({mixed, false, {1, 1, 1}, nullptr, nullptr, nullptr}), Error);
}

}  // namespace
}  // namespace step_oracle

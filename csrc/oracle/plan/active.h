// The plan table behind each card of the device "oracle", and what products found there.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "csrc/oracle/plan/table.h"

namespace step_oracle::plan {

// Null: none, every product takes the class default. Safe to call while products run: they keep the table they found.
void set_active(int device, std::shared_ptr<const Table> table);
std::shared_ptr<const Table> active(int device);

// Where the tables that come along are, one `<card>.json` each. Without a folder, there are none.
void set_folder(std::string path);
// Null where there is none for the card.
std::shared_ptr<const Table> shipped(const std::string& card);

// Products that have run: how many, and those that found no row and took the class default: assumed.
struct Tally {
  std::uint64_t products = 0, assumed = 0;
  std::map<Key, std::uint64_t> kinds;  // of the assumed ones
};

// The plan of a product on a card of the device "oracle": the forced one, the table's, or the class default. Counted.
gemm::Plan choose(int device, const std::string& card, const Key& key);

// What choose() has counted in this process, replays left out.
Tally tally();
void clear_tally();

// For its time, this thread's products are counted here.
class TallyScope {
 public:
  TallyScope();
  ~TallyScope();
  TallyScope(const TallyScope&) = delete;
  TallyScope& operator=(const TallyScope&) = delete;
  const Tally& tally() const { return own_; }

 private:
  Tally own_;
  Tally* before_;
};

// For its time, every product of this thread takes this plan, and none is counted.
class Forced {
 public:
  explicit Forced(const gemm::Plan& plan);
  ~Forced();
  Forced(const Forced&) = delete;
  Forced& operator=(const Forced&) = delete;

 private:
  gemm::Plan plan_;
};

// The products of this thread since the last call: how many, and the last one's key.
struct Asked {
  int count = 0;
  Key key;
};
Asked take_asked();

}  // namespace step_oracle::plan

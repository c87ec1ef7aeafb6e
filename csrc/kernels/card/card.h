// Card profiles: what of a card enters the bytes.
#pragma once
#include <string>
#include <vector>

namespace step_oracle {

struct Card {
  const char* name;      // lower case with hyphens, as users write it
  const char* product;   // as cudaGetDeviceProperties names it
  int sms;               // multiprocessors
  int threads_per_sm;    // maximum resident threads a multiprocessor
  int cc_major;          // compute capability
  int cc_minor;
  const char* source;    // where sms comes from
  int compute_capability() const { return cc_major * 10 + cc_minor; }
};

const std::vector<Card>& all_cards();
// Throws kBadInput, naming the known cards, for any other name.
const Card& card_by_name(const std::string& name);

}  // namespace step_oracle

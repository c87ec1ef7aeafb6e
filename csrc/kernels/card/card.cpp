#include "csrc/kernels/card/card.h"

#include <fmt/format.h>

#include "csrc/kernels/core/error.h"

namespace step_oracle {

const std::vector<Card>& all_cards() {
  static const std::vector<Card> cards{
#define SO_CARD(name, product, sms, threads, major, minor, source) {name, product, sms, threads, major, minor, source},
#include "csrc/kernels/card/cards.inc"
#undef SO_CARD
  };
  return cards;
}

const Card& card_by_name(const std::string& name) {
  std::string known;
  for (const Card& card : all_cards()) {
    if (name == card.name) return card;
    known += (known.empty() ? "" : ", ") + std::string(card.name);
  }
  throw Error(ErrorKind::kBadInput, fmt::format("no card is called '{}'; the cards are: {}", name, known));
}

}  // namespace step_oracle

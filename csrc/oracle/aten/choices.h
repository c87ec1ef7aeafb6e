// What a card's kernel leaves open and a recording settles (the order in which thread blocks arrive), by name. An
// operator that meets an open choice asks for it; a replay, a walk or the user says which one it was.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace step_oracle::aten {

struct Choice {
  std::string op, name;     // "_scaled_dot_product_efficient_attention_backward", "dq_order"
  std::int64_t call = -1;   // of the operator's calls that leave it open, from 0; -1: each that no other choice names
  std::string value;        // in the kernel's words: one text for one meaning
};

// For its time, these choices hold on this thread, and no others. Throws Error{kBadInput} for two of one call.
class ChoiceScope {
 public:
  explicit ChoiceScope(std::vector<Choice> choices);
  ~ChoiceScope() { close(); }
  void close();  // before its time; once
  ChoiceScope(const ChoiceScope&) = delete;
  ChoiceScope& operator=(const ChoiceScope&) = delete;

  const std::vector<Choice>& choices() const { return choices_; }
  std::vector<std::uint64_t> times() const { return times_; }  // how many calls took each of them
  std::int64_t calls(const std::string& op, const std::string& name) const;  // that left it open
  // What calls took since the last time, each with the number of its call.
  std::vector<Choice> take_taken() { return std::exchange(taken_, {}); }

 private:
  friend struct Asked ask(std::string_view op, std::string_view name);
  std::vector<Choice> choices_;
  std::vector<std::uint64_t> times_;
  std::vector<Choice> taken_;
  std::map<std::pair<std::string, std::string>, std::int64_t> calls_;
  ChoiceScope* outer_;
  bool closed_ = false;
};

// For its time, every call of this operator on this thread takes this value, and none is counted.
class ForcedChoice {
 public:
  explicit ForcedChoice(const Choice& choice);
  ~ForcedChoice();
  ForcedChoice(const ForcedChoice&) = delete;
  ForcedChoice& operator=(const ForcedChoice&) = delete;

 private:
  const Choice* outer_;
};

struct Asked {
  std::int64_t call = 0;
  std::optional<std::string> value;  // none: nothing was chosen for this call
};
// From one of open_operators().
Asked ask(std::string_view op, std::string_view name);
// The operators that may leave a choice open.
std::vector<std::string> open_operators();

// An open choice as a search wants it. A result consists of parts, each with a variant of its own; the first variant is
// the one that the operator takes where nothing was chosen.
struct OpenChoice {
  Choice choice;                     // without a value
  bool race = false;                 // the first variant is a stand-in; else it is what is assumed
  std::size_t result = 0;            // of the operator: what the choice decides
  std::vector<std::string> whole;    // values that treat all parts alike, the first variant's first
  std::vector<int> variants;         // of each part
  bool all = false;                  // there are no others
  std::function<std::string(const std::vector<int>& variants)> value;  // from a variant of each part
  std::function<std::string(std::size_t part, int variant)> variant;   // in words
  std::function<std::string(std::size_t part)> part;                   // in words
  std::function<at::Tensor(const at::Tensor& result, std::size_t part)> elements;
};

// For its time, what the operators of this thread leave open is noted in `opened`.
class OpenScope {
 public:
  explicit OpenScope(std::vector<OpenChoice>& opened);
  ~OpenScope();
  OpenScope(const OpenScope&) = delete;
  OpenScope& operator=(const OpenScope&) = delete;

 private:
  std::vector<OpenChoice>* outer_;
};
// From an operator that asked and was told nothing. `describe` is called where somebody notes it.
void leave_open(const std::function<OpenChoice()>& describe);

}  // namespace step_oracle::aten

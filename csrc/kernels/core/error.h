// The one exception of the torch-free layers. Its message says what, the values, and what to do; the torch edge
// (csrc/oracle/bind, csrc/record/capture) turns the kind into ValueError, NotImplementedError or StepOracleError.
#pragma once
#include <exception>
#include <string>
#include <utility>

namespace step_oracle {

enum class ErrorKind {
  kBadInput,     // the caller's values are wrong: ValueError
  kUnsupported,  // right, but not modelled: NotImplementedError
  kCorrupt,      // a file that does not say what it should: StepOracleError
  kIo,           // the operating system said no: StepOracleError
  kInternal,     // a fault of ours: StepOracleError
};

class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}
  ErrorKind kind() const noexcept { return kind_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  ErrorKind kind_;
  std::string message_;
};

}  // namespace step_oracle

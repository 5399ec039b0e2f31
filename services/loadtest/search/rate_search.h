// Finds the highest rate that a server still answers well.
#pragma once

#include <map>
#include <optional>

namespace baton::loadtest {

// A bisection that takes a share of good requests >= `target` for passing, and assumes that what
// passes at a rate passes at lower ones. It doubles from `least` until a rate fails, then halves
// the gap geometrically. Not thread-safe.
class RateSearch {
 public:
  // Ends when the lowest failing rate is at most (1 + tolerance) times the highest passing one,
  // when `most` passes or when `least` fails. 0 < least <= most.
  RateSearch(double target, double least, double most, double tolerance);

  // The rate to try next; nothing when it is found.
  std::optional<double> Next() const;
  // What came of a rate, this search's own or another one's.
  void Add(double rate, double share);

  // The highest rate that passed, below every one that failed; nothing when none did.
  std::optional<double> best() const { return best_; }

 private:
  const double target_;
  const double least_;
  const double most_;
  const double tolerance_;
  std::optional<double> best_;
  std::optional<double> failed_;  // the lowest
};

}  // namespace baton::loadtest

// Rounds in which everyone meets everyone else once (the circle method).
#pragma once

namespace baton::kernels::cuda {

struct RoundPair {
  int low = 0;
  int high = 0;
};

// Pair `index` (below count / 2) of round `round` (below count - 1) among `count` players, an even
// number: the last one stays, the others go round.
constexpr RoundPair FindRoundPair(int count, int round, int index) {
  const int circle = count - 1;
  const int a = index == 0 ? circle : (round + index) % circle;
  const int b = (round - index + circle) % circle;
  return a < b ? RoundPair{a, b} : RoundPair{b, a};
}

}  // namespace baton::kernels::cuda

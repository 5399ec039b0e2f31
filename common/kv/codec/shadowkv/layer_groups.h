// Neighbouring layers that something is done for together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton::kv {

// Layers [begin, end).
struct LayerGroup {
  int32_t begin = 0;
  int32_t end = 0;
};

// As few groups of at most `most` as [begin, end) takes, of about equal size.
inline std::vector<LayerGroup> EvenGroups(int32_t begin, int32_t end, int32_t most) {
  const int32_t layers = end - begin;
  const int32_t count = (layers + most - 1) / most;
  std::vector<LayerGroup> groups;
  groups.reserve(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) {
    groups.push_back(
        {.begin = begin + layers * i / count, .end = begin + layers * (i + 1) / count});
  }
  return groups;
}

}  // namespace baton::kv

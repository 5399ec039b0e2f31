// What is measured over dense pages.
#pragma once

#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_pages.h"

namespace baton::model {

// A model and room for its sequences, which is borrowed like the model.
struct ModelSubject : LoadedModel {
  ModelPages& pages;
};

}  // namespace baton::model

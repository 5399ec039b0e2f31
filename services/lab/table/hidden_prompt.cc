#include "services/lab/table/hidden_prompt.h"

#include "services/lab/table/table_model.h"
#include "services/lab/table/working_pages.h"

namespace baton::lab {

absl::Status HiddenPrompt::Expand(TableModel& model, const WorkingPages& prompt) {
  pages_.CopyLayers(prompt, model.full_layers());
  return model.Expand(*hidden_, pages_);
}

}  // namespace baton::lab

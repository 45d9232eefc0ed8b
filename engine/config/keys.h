// The keys of DeepSpeed's ds_config, with those that dsat adds.
#pragma once

#include "engine/config/key_table.h"

namespace dsat::engine {

// Static storage.
const KeyTable& Keys();

}  // namespace dsat::engine

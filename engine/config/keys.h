// The keys of DeepSpeed's ds_config, with those that dsat adds.
#ifndef DSAT_ENGINE_CONFIG_KEYS_H_
#define DSAT_ENGINE_CONFIG_KEYS_H_

#include "engine/config/key_table.h"

namespace dsat::engine {

// Static storage.
const KeyTable& Keys();

}  // namespace dsat::engine

#endif  // DSAT_ENGINE_CONFIG_KEYS_H_

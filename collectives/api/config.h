// Config: translation between the C API's annulus_config_t and Options.
#pragma once

#include "collectives/annulus.h"
#include "collectives/core/options.h"

namespace annulus {

// Fills `config` with the defaults and then from the environment. Its strings stay valid while the process lives; the
// job key is the environment's own string.
// Errors: kInvalidArgument naming the variable.
Status InitConfig(annulus_config_t* config);

// Reads as many fields as config.struct_bytes covers; the others keep their defaults. A null string means the default.
// Errors: kInvalidArgument when no version had this struct_bytes, or a value is wrong: as Validate.
Status ToOptions(const annulus_config_t& config, Options* options);

}  // namespace annulus

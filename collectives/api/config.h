// Config: translation between the C API's annulus_config_t and Options.
#pragma once

#include "collectives/annulus.h"
#include "collectives/core/options.h"

namespace annulus {

// Fills `config` from the environment over the defaults. Its strings stay valid while the process lives; the job key
// is the environment's own.
// Errors: kInvalidArgument naming the variable.
Status InitConfig(annulus_config_t* config);

// Reads as many fields as config.struct_bytes covers; the others keep their defaults. A null string stands for the
// default. Errors: kInvalidArgument when struct_bytes is none that any version had, or a value is wrong: as Validate.
Status ToOptions(const annulus_config_t& config, Options* options);

}  // namespace annulus

// Config: translation of the C API's annulus_config_t to Options. A value comes from the first of these that has it:
// field, `settings`, ANNULUS_* variable, launcher, default.
//
// Threads: any, while no other thread changes the environment.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"
#include "collectives/annulus.h"
#include "collectives/comm/introduction.h"
#include "collectives/core/options.h"

namespace annulus {

// Fills the first `struct_bytes` bytes with a config whose values all come from `sources`.
// Errors: kInvalidArgument  no version has this struct_bytes. kUnsupported: an unknown source.
Status InitConfig(annulus_config_t* config, size_t struct_bytes, uint32_t sources);

// `config` may be null: all sources. Errors: kInvalidArgument naming the field, setting or variable that is wrong;
// kUnsupported naming what this version does not have.
Status ToOptions(const annulus_config_t* config, const EnvironmentLookup& lookup, Options* options);

// How the ranks find each other, if `config`, which may be null, has functions for that. They are those of the caller
// and valid as long as the config's. Errors: kInvalidArgument  the store lacks a function. As ToOptions for structs.
Status ToIntroduction(const annulus_config_t* config, Introduction* introduction);

// The value that the setting called `name` has in `config`, as a user would write it.
// Errors: as ToOptions; kInvalidArgument when there is no such setting, or it is a secret.
Status ConfigValue(const annulus_config_t* config, const EnvironmentLookup& lookup, const std::string& name,
                   std::string* value);

}  // namespace annulus

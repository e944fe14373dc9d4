# SPDX-License-Identifier: Apache-2.0
"""ReFrame's settings for this machine alone. A site has its own, with its scheduler and modules, and passes them by -C."""
site_configuration = {
    "systems": [{
        "name": "here",
        "hostnames": [".*"],
        "partitions": [{"name": "login", "scheduler": "local", "launcher": "local", "environs": ["builtin"], "max_jobs": 1}],
    }],
}

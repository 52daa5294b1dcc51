package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"sigs.k8s.io/kwok/pkg/config"
	kwok "sigs.k8s.io/kwok/pkg/kwok/cmd"
	"sigs.k8s.io/kwok/pkg/log"
	"sigs.k8s.io/kwok/pkg/utils/signals"
)

// runKwok starts the controller that plays kubelet for nodes without a machine.
func runKwok() {
	// Kubernetes' component-base has put a "version" flag into the global set,
	// which kwok's command would inherit and refuse.
	pflag.CommandLine = pflag.NewFlagSet(os.Args[0], pflag.ExitOnError)

	// Logging and configuration must be known before the command exists, so its
	// flags are read twice: here for those two, then by the command for all.
	flags := pflag.NewFlagSet("early", pflag.ContinueOnError)
	flags.ParseErrorsAllowlist.UnknownFlags = true
	flags.Usage = func() {}
	ctx, _ := log.InitFlags(signals.SetupSignalContext(), flags)
	ctx, err := config.InitFlags(ctx, flags)
	exitOn(err)
	command := kwok.NewCommand(ctx)
	command.PersistentFlags().AddFlagSet(flags)
	exitOn(command.ExecuteContext(ctx))
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "kwok:", err)
		os.Exit(1)
	}
}
